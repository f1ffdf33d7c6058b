"""The training loop: epochs of steps, a checkpoint after each."""

from __future__ import annotations

import os
import resource
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from shiftcal import _ranks
from shiftcal._checks import wrong
from shiftcal._progress import Progress
from shiftcal.data.dataset import Dataset, FileSplit
from shiftcal.data.loader import MixedEpoch, seed_of, seeded
from shiftcal.records import BAD_BATCH, write_json
from shiftcal.training import checkpoint
from shiftcal.training.captured import Engine
from shiftcal.training.config import Config
from shiftcal.training.interrupt import Interrupt
from shiftcal.training.run import Run, load_dataset
from shiftcal.training.schedule import learning_rate
from shiftcal.training.tracking import Tracking

_PURPOSES = ("augment", "method augment", "constraint augment")


def train(
    config: Config,
    dataset: Dataset | None = None,
    *,
    checkpoints: Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Run:
    """Train one method and return the finished run, with its model and the history of its epochs.

    Args:
        config: What to train.
        dataset: What to train on, by default what the config names.
        checkpoints: Directory for a checkpoint after every epoch; None keeps everything in memory.
        resume: Continue from the last checkpoint there is.
        progress: Show a bar on a terminal, a line per epoch elsewhere.
    """
    run = Run(config, dataset or load_dataset(config))
    return go_on(run, checkpoints=checkpoints, resume=resume, progress=progress)


def go_on(run: Run, *, checkpoints: Path | None = None, resume: bool = False, progress: bool = True) -> Run:
    """Train a run to its end, see `train`. SIGINT, SIGTERM and SIGHUP write a checkpoint first."""
    config, taken = run.config, None
    if checkpoints and checkpoint.checkpoints(checkpoints):
        if not resume:
            found = checkpoint.checkpoints(checkpoints)[-1]
            raise wrong("checkpoints", "a directory without checkpoints (resume=True continues)", str(found))
        taken = take_up(run, checkpoints)
    costs = [run.steps_per_epoch * run.step_cost(epoch) for epoch in range(config.train.epochs)]
    done = sum(costs[: run.epochs_done]) + run.steps_done * run.step_cost(run.epochs_done)
    with (
        deterministic(config.engine.deterministic),
        Progress(config.method, sum(costs), done=done, enabled=progress and _ranks.rank() == 0) as bar,
        Interrupt(enabled=checkpoints is not None) as interrupt,
    ):
        if taken is not None and run.epochs_done < config.train.epochs:
            bar.line(f"goes on from {taken.name}")
        steps = run.steps_per_epoch * (config.train.epochs - run.epochs_done)
        engine = Engine(run.model, run.optimizer, config, steps=steps, average=run.average, say=bar.line)
        saver = checkpoint.Saver(checkpoints, bar.line) if checkpoints and _ranks.rank() == 0 else None
        tracking = Tracking(checkpoints.parent, config) if checkpoints and _ranks.rank() == 0 else None
        try:
            while run.epochs_done < config.train.epochs:
                entry = train_epoch(run, engine, bar, interrupt)
                if saver:
                    name = checkpoint.name_of(run.epochs_done, run.steps_done)
                    best = entry is not None and run.is_best()
                    saver.save(name, run.model, run.state_dict(), run.history, best=best)
                if entry is None:
                    break
                if tracking:
                    tracking.log(run.history)
                bar.line(f"epoch {entry['epoch']}/{config.train.epochs}  {describe(entry)}")
                if interrupt.now():
                    break
        except NonFiniteError as error:
            if checkpoints and _ranks.rank() == 0:
                error.save(checkpoints.parent / BAD_BATCH)
            raise
        finally:
            if saver:
                saver.wait()
            if tracking:
                tracking.close()
        if interrupt.asked is not None and run.epochs_done < config.train.epochs:
            interrupt.leave()
        run.engine = engine.describe()
    return run


def take_up(run: Run, directory: Path) -> Path:
    """Take up the last checkpoint that is whole, or else the best one, and name those that are not."""
    found = [*checkpoint.best_ones(directory), *checkpoint.checkpoints(directory)]
    while found:
        path = found.pop()
        try:
            run.load(path)
        except checkpoint.DamagedError as error:
            warnings.warn(f"{error} {f'{found[-1].name} is tried instead.' if found else ''}".strip(), stacklevel=3)
        else:
            return path
    expected = "a directory with a whole checkpoint (remove it to train from the beginning)"
    raise wrong("checkpoints", expected, f"{directory}, where all are damaged")


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Let torch use nothing but algorithms that give the same result every time."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    benchmark = torch.backends.cudnn.benchmark
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS wants to be told before it starts
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = not wanted
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1], benchmark


def train_epoch(run: Run, engine: Engine, bar: Progress, interrupt: Interrupt) -> dict[str, Any] | None:
    """Train one epoch, or the rest of one, and add its entry to the history; None if it was interrupted."""
    devices = [run.device] if run.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed_of(run.config.seed, run.epochs_done, "model"))  # dropout and the like
        return _train_epoch(run, engine, bar, interrupt)


def _train_epoch(run: Run, engine: Engine, bar: Progress, interrupt: Interrupt) -> dict[str, Any] | None:
    config, epoch, started, size = run.config, run.epochs_done, time.perf_counter(), run.config.step_size
    active = run.active(epoch)
    objective = run.full if active else run.plain
    mixed = run.mixed_epoch(epoch, config.filter.ratio if active and run.method.low_pass else 0.0)
    constraint = run.method.constraint
    independent = objective.constraint is not None and constraint is not None and constraint.batch == "independent"
    originals = mixed.original_batches(size, skip=run.steps_done) if independent else None
    generators = {name: seeded(config.seed, epoch, name, run.device) for name in _PURPOSES}
    engine.totals.reset(constrained=objective.constraint is not None)
    run.restore_within(generators, engine.totals)
    run.model.train()
    for index, batch in enumerate(mixed.batches(size, skip=run.steps_done), start=run.steps_done):
        run.set_rate(learning_rate(config.train, epoch * run.steps_per_epoch + index, run.steps_per_epoch))
        mix = run.prepare(batch, generators["augment"], generators["method augment"])
        original = run.prepare(next(originals), generators["constraint augment"]) if originals else None
        engine.step(objective, mix, original)
        bar.advance(run.step_cost(epoch))
        if bar.due() and (so_far := engine.totals.peek()):
            bar.show(f"epoch {epoch + 1}/{config.train.epochs}  {describe(so_far)}")
        if index + 1 < run.steps_per_epoch and interrupt.after_step():
            _ranks.average_statistics(run.model)
            run.pause(index + 1, generators, engine.totals, time.perf_counter() - started)
            return None
    _ranks.average_statistics(run.model)
    totals = engine.totals.read()  # waits for the device, which may be many steps behind
    seconds = time.perf_counter() - started + run.within.get("seconds", 0.0)
    entry = {
        "epoch": epoch + 1,
        "active": active,
        "filtered": int(mixed.filtered.sum()),
        "learning_rate": float(run.optimizer.param_groups[0]["lr"]),
        **totals,
        "seconds": seconds,
        "images_per_second": len(run.train_split) / seconds,
        "memory": memory_in_use(run.device),
    }
    _stop_if_frozen(run, mixed, epoch, entry)
    entry["validation"] = run.validate()
    run.best.after_epoch(run.model, epoch + 1, entry["validation"])
    run.history.append(entry)
    run.epochs_done, run.within = run.epochs_done + 1, {}
    return entry


def memory_in_use(device: torch.device) -> int:
    """Return the peak number of bytes that tensors on a GPU, or this process on a CPU, have taken so far."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def describe(entry: dict[str, Any]) -> str:
    """Write an epoch's numbers in one line."""
    text = f"loss {entry['loss']:.3f}  accuracy {entry['accuracy']:6.1%}"
    return text + (f"  conflicts {entry['conflict_rate']:4.0%}" if "conflict_rate" in entry else "")


class NonFiniteError(FloatingPointError):
    """A gradient that was not finite, with the batch that it came from."""

    def __init__(self, message: str, batch: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.batch = batch or {}  # when a worker's error is unpickled it comes after the message

    def save(self, path: Path) -> None:
        """Write down which images the batch had."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.batch)
        self.args = (f"{self.args[0]} The batch: {path}.",)


def _stop_if_frozen(run: Run, mixed: MixedEpoch, epoch: int, entry: dict[str, Any]) -> None:
    good = entry.pop("good_steps")
    if good < entry.pop("steps"):
        images = mixed.indices(run.config.step_size)[good]
        batch = {
            "method": run.config.method,
            "epoch": epoch + 1,
            "step": good + 1,
            "indices": images.tolist(),
            "filtered": mixed.filtered[images].tolist(),
        }
        if isinstance(run.train_split, FileSplit):
            batch["files"] = [str(run.train_split.files[place]) for place in images.tolist()]
        raise NonFiniteError(
            f"The gradient of method '{run.config.method}' was not finite at step {good + 1} of epoch {epoch + 1}; "
            "nothing was updated from there on. Lower the learning rate or clip the gradient (train.clip_norm).",
            batch,
        )
