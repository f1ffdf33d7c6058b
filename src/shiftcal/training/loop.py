"""The training loop: epochs of steps. It knows no directories: what happens after a step or an epoch is a hook."""

from __future__ import annotations

import time
from typing import Any

import torch

from shiftcal import _distributed, _machine
from shiftcal._errors import DivergedError
from shiftcal._progress import Progress
from shiftcal.data.epoch import MixedEpoch, seed_of, seeded
from shiftcal.data.split import FileSplit
from shiftcal.training.engine import Engine
from shiftcal.training.engine.distributed import average_statistics
from shiftcal.training.engine.precision import determinism
from shiftcal.training.schedule import set_learning_rate
from shiftcal.training.settings import EngineSettings
from shiftcal.training.state import TrainState
from shiftcal.training.task import Task
from shiftcal.training.totals import Totals

_ADVICE = "A GPU, a smaller network (train.model) or smaller images (data.size) would be faster."
_PURPOSES = ("augment", "method augment", "constraint augment")


class Hooks:
    """What happens between steps and epochs; by default nothing. Every rank calls each."""

    def after_step(self) -> bool:
        """Tell whether to pause here, in the middle of an epoch."""
        return False

    def after_epoch(self, state: TrainState, bar: Progress) -> bool:  # noqa: ARG002 (hooks use them)
        """Save what an epoch left, and tell whether to stop."""
        return False

    def paused(self, state: TrainState, bar: Progress) -> None:
        """Save what is needed to continue in the middle of an epoch."""


def fit(
    state: TrainState,
    task: Task,
    settings: EngineSettings | None = None,
    *,
    hooks: Hooks | None = None,
    progress: bool = True,
) -> TrainState:
    """Train to the last epoch, or until a hook stops it.

    Args:
        state: Where training stands; it is moved forward in place.
        task: What is trained on what.
        settings: How steps are executed.
        hooks: What happens between steps and epochs.
        progress: Show a bar on a terminal, a line per epoch elsewhere.
    """
    settings, hooks, epochs = settings or EngineSettings(), hooks or Hooks(), task.settings.epochs
    costs = [task.steps_per_epoch * _step_cost(state, task, epoch) for epoch in range(epochs)]
    done = sum(costs[: state.epochs_done]) + state.steps_done * _step_cost(state, task, state.epochs_done)
    shown = progress and _distributed.rank() == 0
    with (
        determinism(settings.deterministic),
        Progress(
            task.name, sum(costs), done=done, enabled=shown, advice=_ADVICE if state.device.type == "cpu" else ""
        ) as bar,
    ):
        totals = Totals(state.optimizer.found_inf)  # type: ignore[attr-defined]
        engine = _engine(state, task, settings, totals, bar)
        while state.epochs_done < epochs:
            if not _train_epoch(state, task, engine, totals, bar, hooks):
                hooks.paused(state, bar)
                break
            stop, entry = hooks.after_epoch(state, bar), state.history[-1]
            bar.line(f"epoch {entry['epoch']}/{epochs}  {describe(entry)}")
            if stop:
                break
        state.engine = engine.describe()
    return state


def _engine(state: TrainState, task: Task, settings: EngineSettings, totals: Totals, bar: Progress) -> Engine:
    own = task.settings
    return Engine(
        state.model,
        state.optimizer,
        settings,
        step_size=own.step_size,
        after_step=[totals.add] if state.average is None else [state.average.update, totals.add],
        micro_batch=own.batch_size if own.accumulate > 1 else None,
        rectify_per=own.rectify_per,
        steps=task.steps_per_epoch * own.epochs,  # of the whole run: a resumed one is executed as it was before
        say=bar.line,
    )


def _train_epoch(state: TrainState, task: Task, engine: Engine, totals: Totals, bar: Progress, hooks: Hooks) -> bool:
    """Train one epoch, or the rest of one, and append its entry to the history; False if a hook paused it."""
    devices = [state.device] if state.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed_of(task.seed, state.epochs_done, "model"))  # dropout and the like
        return _steps(state, task, engine, totals, bar, hooks)


def _steps(state: TrainState, task: Task, engine: Engine, totals: Totals, bar: Progress, hooks: Hooks) -> bool:
    own, number, started, steps = task.settings, state.epochs_done, time.perf_counter(), task.steps_per_epoch
    objective = state.full if task.is_active(number) else state.plain
    epoch, cost = task.epoch(number), _step_cost(state, task, number)
    independent = task.method.constraint is not None and task.method.constraint.batch == "independent"
    originals = None
    if objective.constraint is not None and independent:
        originals = epoch.original_batches(own.step_size, skip=state.steps_done)
    generators = {name: seeded(task.seed, number, name, state.device) for name in _PURPOSES}
    totals.reset(constrained=objective.constraint is not None)
    state.restore_partial(generators, totals)
    state.model.train()
    for index, batch in enumerate(epoch.batches(own.step_size, skip=state.steps_done), start=state.steps_done):
        set_learning_rate(state.optimizer, own, number * steps + index, steps)
        mix = task.prepare(batch, generators["augment"], generators["method augment"])
        original = task.prepare(next(originals), generators["constraint augment"], None) if originals else None
        engine.step(objective, mix, original)
        if bar.advance(cost) and (so_far := totals.peek()):
            bar.show(f"epoch {number + 1}/{own.epochs}  {describe(so_far)}")
        if index + 1 < steps and hooks.after_step():
            average_statistics(state.model)
            state.pause(index + 1, generators, totals, time.perf_counter() - started)
            return False
    average_statistics(state.model)
    seen = totals.read()  # waits for the device, which may be many steps behind
    seconds = time.perf_counter() - started + state.partial.get("seconds", 0.0)
    _stop_if_diverged(state, task, epoch, seen)
    _finish_epoch(state, task, epoch, seen, seconds)
    return True


def _finish_epoch(state: TrainState, task: Task, epoch: MixedEpoch, seen: dict[str, Any], seconds: float) -> None:
    number = state.epochs_done
    entry = {
        "epoch": number + 1,
        "active": task.is_active(number),
        "filtered": int(epoch.filtered.sum()),
        "learning_rate": float(state.optimizer.param_groups[0]["lr"]),
        **{name: value for name, value in seen.items() if name not in ("steps", "good_steps")},
        "seconds": seconds,
        "images_per_second": len(task.train) / seconds,
        "memory": peak_memory(state.device),
    }
    try:
        if task.validate is not None and task.is_validated(number):
            entry["validation"] = task.validate(state.model)
            state.best.after_epoch(state.model, number + 1, entry["validation"])
        if task.test is not None and (number + 1) % task.test_every == 0:
            entry["test"] = task.test(state.model)
        if task.noise is not None and number + 1 in task.noise_after:
            entry["noise"] = task.noise(state.model)
    except FloatingPointError:
        raise DivergedError(task.name, number + 1, None) from None
    state.history.append(entry)
    state.epochs_done, state.partial = number + 1, {}


def _step_cost(state: TrainState, task: Task, epoch: int) -> int:
    """Estimate the time of a step in units of a plain one, for the time left: a constraint takes a second pass."""
    return 2 if task.is_active(epoch) and state.full.constraint else 1


def _stop_if_diverged(state: TrainState, task: Task, epoch: MixedEpoch, seen: dict[str, Any]) -> None:
    good = seen["good_steps"]
    if good == seen["steps"]:
        return
    images = epoch.indices(task.settings.step_size)[good]
    batch = {
        "method": task.name,
        "epoch": state.epochs_done + 1,
        "step": good + 1,
        "indices": images.tolist(),
        "filtered": epoch.filtered[images].tolist(),
    }
    if isinstance(task.train, FileSplit):
        batch["files"] = [str(task.train.files[place]) for place in images.tolist()]
    raise DivergedError(task.name, state.epochs_done + 1, good + 1, batch)


def peak_memory(device: torch.device) -> int:
    """Return the peak number of bytes that tensors on a GPU, or this process on a CPU, have taken so far."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _machine.peak_memory()


def describe(entry: dict[str, Any]) -> str:
    """Write an epoch's numbers in one line."""
    text = f"loss {entry['loss']:.3f}  accuracy {entry['accuracy']:6.1%}"
    return text + (f"  conflicts {entry['conflict_rate']:4.0%}" if "conflict_rate" in entry else "")
