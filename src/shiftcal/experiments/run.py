"""One run from config to record: train, evaluate, write."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
from torch import nn

from shiftcal import _distributed, models
from shiftcal._errors import CheckpointError, DivergedError, RunDirectoryError, wrong
from shiftcal._io import first_difference, write_json
from shiftcal._progress import Progress, say
from shiftcal.auditing.grid import evaluate
from shiftcal.data.dataset import Dataset
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import FileSplit
from shiftcal.experiments import checkpoint, directory
from shiftcal.experiments.config import Config, config_of_run, from_dict
from shiftcal.experiments.environment import describe_device, environment, resolve_device
from shiftcal.experiments.interrupt import Interrupt
from shiftcal.experiments.setup import (
    check_config,
    load_dataset,
    load_network,
    preprocessing_of,
    set_up,
    stage_of,
    validation,
)
from shiftcal.experiments.tracking import Tracking
from shiftcal.records import (
    RECORD,
    SCHEMA,
    WEIGHTS,
    Environment,
    Evaluation,
    RunRecord,
    read_record,
    write_record,
)
from shiftcal.training.finetune import finetune
from shiftcal.training.loop import Hooks, fit
from shiftcal.training.state import TrainState
from shiftcal.training.task import Task

_PATIENCE = 30  # seconds for which a slow network file system may lag behind


@dataclass(frozen=True)
class Trained:
    """A trained model: the weights that the config keeps, how stored images become its input, and how it got there."""

    model: nn.Module
    epoch: int
    preprocess: Preprocessing
    state: TrainState
    task: Task | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    before: Evaluation | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """The statistics of each epoch."""
        return self.state.history


def train(
    config: Config,
    dataset: Dataset | None = None,
    *,
    checkpoints: Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Trained:
    """Train one method and return the trained model, with the history of its epochs.

    Args:
        config: What to train.
        dataset: What to train on, by default what the config names.
        checkpoints: Directory for a checkpoint after every epoch; None keeps everything in memory.
        resume: Continue from the last checkpoint there is.
        progress: Show a bar on a terminal, a line per epoch elsewhere.
    """
    setup = set_up(config, dataset or load_dataset(config))
    with saving(setup.state, config, checkpoints, resume=resume, progress=progress) as hooks:
        fit(setup.state, setup.task, config.engine, hooks=hooks, progress=progress)
    model, epoch = setup.state.weights(config.row.weights, setup.task.unseen_images)
    return Trained(model, epoch, setup.preprocess, setup.state, setup.task)


@contextmanager
def saving(
    state: TrainState, config: Config, checkpoints: Path | None, *, resume: bool, progress: bool = True
) -> Iterator[Hooks]:
    """Continue a state from its last checkpoint, if there is one, and save it after every epoch and on a signal.

    Yields the hooks for `fit`. After a signal the process ends as the signal would have ended it.
    """
    taken = None
    if checkpoints and checkpoint.checkpoints(checkpoints):
        if not resume:
            found = checkpoint.checkpoints(checkpoints)[-1]
            raise wrong("checkpoints", "a directory without checkpoints (resume=True continues)", str(found))
        taken = restore(state, config, checkpoints)
    unfinished = state.epochs_done < config_epochs(config)
    if taken is not None and unfinished and progress and _distributed.rank() == 0:
        say(f"{config.method}  resumes from {taken.name}")
    first = checkpoints if checkpoints and _distributed.rank() == 0 else None
    with Interrupt(enabled=checkpoints is not None) as interrupt:
        hooks = _SavingHooks(config, first, interrupt)
        try:
            yield hooks
        except DivergedError as error:
            if first:
                first.parent.mkdir(parents=True, exist_ok=True)
                write_json(first.parent / directory.BAD_BATCH, error.batch)
                error.saved_to = first.parent / directory.BAD_BATCH
            raise
        finally:
            hooks.close()
        if interrupt.asked is not None and state.epochs_done < config_epochs(config):
            interrupt.leave()


def config_epochs(config: Config) -> int:
    """Return how many epochs a run has: those of the whole network, or of the classifier alone."""
    return config.finetune.epochs if config.finetuned_from else config.train.epochs


class _SavingHooks(Hooks):
    """Writes checkpoints and logs, and stops on a signal."""

    def __init__(self, config: Config, checkpoints: Path | None, interrupt: Interrupt) -> None:
        self._config, self._interrupt = config, interrupt
        self.after_step = interrupt.after_step  # type: ignore[method-assign]
        self._saver = checkpoint.Saver(checkpoints) if checkpoints else None
        self._tracking = Tracking(checkpoints.parent, config) if checkpoints else None

    def paused(self, state: TrainState, bar: Progress) -> None:
        self._save(state, bar, best=False)

    def after_epoch(self, state: TrainState, bar: Progress) -> bool:
        losses = [entry["validation"]["nll"] for entry in state.history if entry.get("validation")]
        self._save(state, bar, best=bool(losses) and losses[-1] == min(losses))
        if self._tracking:
            self._tracking.log(state.history)
        return self._interrupt.now()

    def close(self) -> None:
        if self._saver:
            self._saver.wait()
        if self._tracking:
            self._tracking.close()

    def _save(self, state: TrainState, bar: Progress, *, best: bool) -> None:
        if self._saver:
            name = checkpoint.name_of(state.epochs_done, state.steps_done)
            content = state.state_dict() | {"config": self._config.to_dict()}
            self._saver.save(name, state.model, content, state.history, best=best, warn=bar.line)


def restore(state: TrainState, config: Config, checkpoints: Path) -> Path:
    """Continue from the last checkpoint that is whole, or else the best one, and warn of those that are not."""
    found = [*checkpoint.best_checkpoints(checkpoints), *checkpoint.checkpoints(checkpoints)]
    while found:
        path = found.pop()
        try:
            stored, history = checkpoint.load(path, state.model)
        except CheckpointError as error:
            warnings.warn(f"{error} {f'{found[-1].name} is tried instead.' if found else ''}".strip(), stacklevel=2)
            continue
        differing = first_difference(config.to_dict(), upgraded(stored["config"]), ignored=directory.FREE_KEYS)
        if differing:
            raise wrong("checkpoints", "those of the same run", f"{path}, where another run has {differing}")
        state.load_state_dict(stored, history)
        return path
    expected = "a directory with a whole checkpoint (remove it to train from the beginning)"
    raise CheckpointError("checkpoints", expected, f"{checkpoints}, where all are damaged")


def complete(
    config: Config, out: Path, *, resume: bool = False, dataset: Dataset | None = None, progress: bool = True
) -> RunRecord:
    """Train and evaluate one run in a directory of its own, and return its record.

    With `resume`, a finished run is not trained again and an interrupted one continues from its last checkpoint.
    """
    check_config(config)
    _check_shared(out)
    if (out / RECORD).is_file():
        directory.check(out, config.to_dict(), resume=resume, upgrade=partial(comparable, config))
        if (kept := _finished(out)) is not None:
            if progress:
                say(f"{config.method}: finished earlier and kept ({out}; remove it to train again)")
            return kept
    dataset = dataset or load_dataset(config)  # before the claim: wrong options must leave nothing behind
    with ExitStack() as held:
        return _Completion(config, dataset, out, resume, progress, held).record()


def comparable(config: Config, stored: dict[str, Any]) -> dict[str, Any]:
    """Make the stored config of a run comparable with one: without what fine-tuning would do, if neither does it."""
    known = upgraded(stored)
    return known if config.finetuned_from else known | {"finetune": config.to_dict()["finetune"]}


def upgraded(stored: dict[str, Any]) -> dict[str, Any]:
    """Give the stored config of a run, which an earlier version may have written, the keys that came later."""
    return from_dict(stored).to_dict()


@dataclass(frozen=True)
class _Completion:
    """What completing a run needs; `held` is what it holds until its end."""

    config: Config
    dataset: Dataset
    out: Path
    resume: bool
    progress: bool
    held: ExitStack

    def record(self) -> RunRecord:
        """Train, write the weights, evaluate, and write the record."""
        started, clock = datetime.now(UTC), time.perf_counter()
        trained = self._finetuned() if self.config.finetuned_from else self._trained()
        finished = time.perf_counter()
        if _distributed.rank() == 0:
            checkpoint.save_weights(self.out / WEIGHTS, trained.model)
        evaluation = evaluate_with(
            self.config, trained.model, self.dataset, trained.preprocess, progress=self.progress
        ).model_copy(update={"epoch": trained.epoch})
        also = {name: self._other_weights(trained, name) for name in self.config.evaluation.also}
        seconds = {
            # Summed over epochs: a resumed run counts what it did before the interruption.
            "train": sum(entry["seconds"] for entry in trained.history),
            "evaluate": time.perf_counter() - finished,
            "this_process": time.perf_counter() - clock,
            **trained.seconds,
        }
        record = RunRecord.model_validate(
            {
                **self._described(trained),
                "started": started.isoformat(timespec="seconds"),
                "seconds": seconds,
                "history": trained.history,
                "evaluation": evaluation,
                "also": also,
                "before": trained.before,
            }
        )
        if _distributed.rank() == 0:
            write_record(self.out / RECORD, record)
        _distributed.barrier()
        return record

    def _described(self, trained: Trained) -> dict[str, Any]:
        config, dataset = self.config, self.dataset
        counts = {name: len(getattr(dataset, name)) for name in ("train", "validation", "test")}
        loader = "stream" if isinstance(dataset.train, FileSplit) else "memory"
        return {
            "schema": SCHEMA,
            "recipe": config.recipe,
            "method": config.method + ("-finetuned" if config.finetuned_from else ""),
            "seed": config.seed,
            "config": config.to_dict(),
            **environment(),
            "device": describe_device(trained.state.device) | {"processes": _distributed.world_size()},
            "engine": trained.state.engine | {"loader": loader},
            "data": {"name": dataset.name, "classes": dataset.classes, "counts": counts},
            "weights": {"kept": config.row.weights, "epoch": trained.epoch, "sha256": self._digest()},
        }

    def _digest(self) -> str | None:
        if _distributed.rank() > 0:
            return None
        with (self.out / WEIGHTS).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _other_weights(self, trained: Trained, name: str) -> Evaluation:
        if trained.task is None:
            raise wrong("evaluation.also", "empty where the classifier alone is trained", name)
        model, epoch = trained.state.weights(name, trained.task.unseen_images)
        found = evaluate_with(
            self.config, model, self.dataset, trained.preprocess, progress=self.progress, histograms=False
        )
        return found.model_copy(update={"epoch": epoch})

    def _trained(self) -> Trained:
        setup = set_up(self.config, self.dataset)  # before the claim: weights that do not fit must leave nothing behind
        self._claim()
        with self._saving(setup.state) as hooks:
            fit(setup.state, setup.task, self.config.engine, hooks=hooks, progress=self.progress)
        model, epoch = setup.state.weights(self.config.row.weights, setup.task.unseen_images)
        return Trained(model, epoch, setup.preprocess, setup.state, setup.task)

    def _finetuned(self) -> Trained:
        config, dataset = self.config, self.dataset
        network = load_network(config, dataset)
        preprocess = preprocessing_of(config, dataset, network)
        self._claim()
        before = evaluate_with(config, network, dataset, preprocess, progress=self.progress)
        _warn_of_chance(before.validation.accuracy, len(dataset.classes))
        with ExitStack() as stack:
            state, seconds = finetune(
                network,
                dataset,
                stage_of(config),
                preprocess=preprocess,
                validate=validation(config, dataset.validation.to(resolve_device(config.device)), preprocess),
                hooks=lambda state: stack.enter_context(self._saving(state)),
                progress=self.progress,
            )
        return Trained(network, state.epochs_done, preprocess, state, None, {"features": seconds}, before)

    def _saving(self, state: TrainState) -> Any:
        checkpoints = directory.checkpoints_in(self.out)
        return saving(state, self.config, checkpoints, resume=self.resume, progress=self.progress)

    def _claim(self) -> None:
        """Let rank 0 claim the directory; the others wait for it."""
        if _distributed.rank() == 0:
            config, upgrade = self.config.to_dict(), partial(comparable, self.config)
            directory.check(self.out, config, resume=self.resume, upgrade=upgrade)
            self.held.enter_context(directory.locked(self.out))
            directory.claim(self.out, config, resume=self.resume, upgrade=upgrade)
        _distributed.barrier()


def _warn_of_chance(accuracy: float, classes: int) -> None:
    if accuracy < 1.5 / classes and classes > 2:
        warnings.warn(
            f"The checkpoint is right on {accuracy:.1%} of the validation images, hardly more than by chance. Does it "
            "have other classes, another order of them, or another normalisation (train.mean, train.std)?",
            stacklevel=2,
        )


def _check_shared(out: Path) -> None:
    """Make sure that all ranks see the same run in a directory: on another machine it may be another."""
    for _ in range(_PATIENCE):
        found = [*checkpoint.checkpoints(directory.checkpoints_in(out)), *out.glob(RECORD)]
        seen = _distributed.all_gather_object(found[-1].name if found else "nothing")
        if len(set(seen)) == 1:
            return
        time.sleep(1)  # file systems over a network show news late
    listed = ", ".join(f"{name} (rank {rank})" for rank, name in enumerate(seen))
    raise RunDirectoryError("out", "a directory that all ranks see, where a run is resumed", f"{out} with {listed}")


def _finished(out: Path) -> RunRecord | None:
    """Return the record of a finished run; None, with a warning, if it or the weights were damaged or removed."""
    try:
        record = read_record(out / RECORD)
        with safetensors.safe_open(out / WEIGHTS, "pt"):
            return record
    except ValueError:
        damage = f"{out / RECORD} is damaged"
    except (OSError, safetensors.SafetensorError):
        damage = f"{out / WEIGHTS} is missing or damaged"
    warnings.warn(f"{damage}. It is made again from the last checkpoint.", stacklevel=3)
    return None


def check_finished(out: Path) -> None:
    """Raise unless a directory holds a finished run."""
    if not (out / RECORD).is_file() or not (out / WEIGHTS).is_file():
        raise RunDirectoryError("directory", "a finished run (`shiftcal train … --resume` finishes one)", str(out))


def reevaluate(out: Path, *, root: Path | None = None, progress: bool = True) -> RunRecord:
    """Evaluate a finished run's weights again and renew its record.

    Args:
        out: Directory of the run.
        root: Where the data is, if not where the run found it.
        progress: Show progress.
    """
    check_finished(out)
    record = read_record(out / RECORD)
    config = config_of_run(out, [] if root is None else [f"data.root={json.dumps(str(root))}"])
    if config.data.root is not None and not Path(config.data.root).exists():
        said = "a folder that exists" if root else f"as {out} had it (--data FOLDER says where it is now)"
        raise wrong("data.root", said, config.data.root)
    dataset = load_dataset(config)
    model = models.build(config.train.model, len(dataset.classes)).to(resolve_device(config.device))
    models.load_weights(out / WEIGHTS, model)
    clock = time.perf_counter()
    evaluation = evaluate_with(config, model, dataset, preprocessing_of(config, dataset, model), progress=progress)
    record = record.model_copy(
        update={
            "evaluation": evaluation.model_copy(update={"epoch": record.weights.epoch}),
            "seconds": record.seconds | {"evaluate": time.perf_counter() - clock},
            "evaluated_again": Environment.model_validate(environment()),
        }
    )
    write_record(out / RECORD, record)
    return record


def evaluate_with(
    config: Config,
    model: nn.Module,
    dataset: Dataset,
    preprocess: Preprocessing,
    *,
    progress: bool = True,
    histograms: bool = True,
) -> Evaluation:
    """Evaluate as a config says."""
    own = config.evaluation
    return evaluate(
        model,
        dataset,
        preprocess=preprocess,
        corruptions=own.corruptions,
        constants=own.constants,
        frost=own.frost,
        corrupted=own.corrupted,
        bins=own.bins,
        temperatures=own.temperatures,
        temperature_criterion=own.temperature_criterion,
        histograms=histograms,
        batch_size=own.batch_size,
        progress=progress,
    )
