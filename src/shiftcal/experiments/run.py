"""One run from config to record: train, evaluate, write."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from shiftcal import _distributed
from shiftcal._errors import DivergedError, RunDirectoryError, wrong
from shiftcal._io import sha256_of
from shiftcal._lock import locked
from shiftcal._progress import say
from shiftcal.data.dataset import Dataset
from shiftcal.data.files.unreadable import listing_in
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.experiments import checkpoint, directory
from shiftcal.experiments.checks import check_config, check_data, check_training_data
from shiftcal.experiments.config import Config, stored_config
from shiftcal.experiments.environment import describe_device, environment, resolve_device
from shiftcal.experiments.finished import finished
from shiftcal.experiments.noise import with_noise
from shiftcal.experiments.origin import held_out_the_same, matched
from shiftcal.experiments.saving import AfterWarmup, check_resumable, close, saving
from shiftcal.experiments.setup import (
    evaluate_with,
    load_dataset,
    load_network,
    loader_of,
    other_data,
    preprocessing_of,
    seen,
    set_up,
    stage_of,
    validation,
)
from shiftcal.experiments.summary import preprocessing_in_words, summary
from shiftcal.experiments.tracking import Tracking
from shiftcal.records import CONFIG, RECORD, SCHEMA, WEIGHTS, Evaluation, RunRecord, write_record
from shiftcal.training.finetune import finetune
from shiftcal.training.loop import fit
from shiftcal.training.state import TrainState
from shiftcal.training.task import Task

_REMEDY = "A folder with val/ and test/ of its own, which the checkpoint has not seen, is safe."
Artefacts = Callable[[RunRecord, Path], Sequence[Path]]
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
    checkpoints: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Trained:
    """Train one method and return the trained model, with the history of its epochs.

    Args:
        config: What to train.
        dataset: What to train on, by default what the config names.
        checkpoints: Directory for checkpoints after epochs; None keeps everything in memory.
        resume: Continue from the last checkpoint there is.
        progress: Show a bar on a terminal, a line per epoch elsewhere.
    """
    if config.finetuned_from:
        expected = "one that trains a whole network (`shiftcal finetune` trains the classifier alone)"
        raise wrong("config", expected, f"one with finetuned_from = {config.finetuned_from}")
    checkpoints = None if checkpoints is None else Path(checkpoints)
    dataset = dataset or load_dataset(config)
    check_training_data(config, dataset)
    setup = with_noise(set_up(config, dataset), config, dataset)
    data = seen(dataset)
    with saving(setup.state, config, checkpoints, resume=resume, progress=progress, data=data) as hooks:
        fit(setup.state, setup.task, config.engine, hooks=hooks, progress=progress)
    model, epoch = setup.state.weights(config.row.weights, setup.task.unseen_images)
    return Trained(model, epoch, setup.preprocess, setup.state, setup.task)


def complete(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    dataset: Dataset | None = None,
    progress: bool = True,
    artefacts: Artefacts | None = None,
    after_warmup: AfterWarmup | None = None,
) -> RunRecord:
    """Train and evaluate one run in a directory of its own, and return its record.

    With `resume`, a finished run is not trained again and an interrupted one continues from its last checkpoint.
    `artefacts` makes files of the record and the directory, which trackers are given at the end. `after_warmup` is
    given the checkpoint of the last epoch before filter and constraint start.
    """
    check_config(config)
    _check_shared(out)
    if (out / RECORD).is_file():
        directory.check(out, config.to_dict(), resume=resume, upgrade=partial(comparable, config))
        if (kept := finished(out)) is not None:
            _check_kept(kept, dataset, out)
            if progress:
                say(f"{config.method}: finished earlier and kept ({out}; remove it to train again)")
            return kept
    with ExitStack() as held:
        held.enter_context(listing_in(out if directory.is_free_or_a_run(out) else None))
        dataset = dataset or load_dataset(config)  # before the claim: wrong options must leave nothing behind
        if config.finetuned_from:
            dataset = matched(config, dataset, Path(config.finetuned_from))
        check_data(config, dataset)
        return _Completion(
            config, dataset, out, resume, progress, held, Tracking(out, config), artefacts, after_warmup
        ).record()


def _check_kept(record: RunRecord, dataset: Dataset | None, out: Path) -> None:
    """Raise if a finished run was trained on data with other classes or other numbers of images."""
    if dataset is None or record.data is None or not record.data.classes:
        return
    then = {"classes": list(record.data.classes), "counts": dict(record.data.counts)}
    if differing := other_data(seen(dataset), then | {"loader": record.engine.get("loader")}):
        expected = "one of a run on the same data (remove it to train again)"
        raise RunDirectoryError("out", expected, f"{out}, whose data had {differing}")


def comparable(config: Config, stored: dict[str, Any]) -> dict[str, Any]:
    """Make the stored config of a run comparable with one: without what fine-tuning would do, if neither does it.

    An earlier version may have written it: it gets the keys that came later.
    """
    known = stored_config(stored, CONFIG, config).to_dict()
    return known if config.finetuned_from else known | {"finetune": config.to_dict()["finetune"]}


@dataclass(frozen=True)
class _Completion:
    """What completing a run needs; `held` is what it holds until its end."""

    config: Config
    dataset: Dataset
    out: Path
    resume: bool
    progress: bool
    held: ExitStack
    tracking: Tracking
    artefacts: Artefacts | None
    after_warmup: AfterWarmup | None

    def record(self) -> RunRecord:
        """Train, write the weights, evaluate, and write the record."""
        started, clock = datetime.now(UTC), time.perf_counter()
        trained = self._finetuned() if self.config.finetuned_from else self._trained()
        trained_at = time.perf_counter()
        if _distributed.rank() == 0:
            directory.claim_again(self.out, self.config.to_dict(), partial(comparable, self.config))
            save = partial(checkpoint.save_weights, self.out / WEIGHTS, trained.model, self.dataset.classes)
            self._write(WEIGHTS, save)
        evaluation = self._evaluated(trained, trained.model, trained.epoch)
        also = {name: self._other_weights(trained, name) for name in self.config.evaluation.also}
        seconds = {
            # Summed over epochs: a resumed run counts what it did before the interruption.
            "train": sum(entry["seconds"] for entry in trained.history),
            "evaluate": time.perf_counter() - trained_at,
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
            directory.claim_again(self.out, self.config.to_dict(), partial(comparable, self.config))
            self._write(RECORD, partial(write_record, self.out / RECORD, record))
            self._track(record)
        _distributed.barrier()
        return record

    def _track(self, record: RunRecord) -> None:
        make = self.artefacts or (lambda *_: ())
        try:
            self.tracking.finish(record, lambda: make(record, self.out))
        except OSError as error:
            say(f"WARNING: the trackers could not be told of the evaluation: {error}")

    def _write(self, name: str, write: Callable[[], None]) -> None:
        checkpoint.with_room(write, directory.checkpoints_in(self.out), name, warn=say)

    def _described(self, trained: Trained) -> dict[str, Any]:
        config, dataset = self.config, self.dataset
        counts = {name: len(getattr(dataset, name)) for name in ("train", "validation", "test")}
        return {
            "schema": SCHEMA,
            "recipe": config.recipe,
            "method": config.method + ("-finetuned" if config.finetuned_from else ""),
            "seed": config.seed,
            "config": config.to_dict(),
            **environment(),
            "device": describe_device(trained.state.device) | {"processes": _distributed.world_size()},
            "engine": trained.state.engine | {"loader": loader_of(dataset)},
            "data": {
                "name": dataset.name,
                "classes": dataset.classes,
                "counts": counts,
                "preprocessing": trained.preprocess.described(),
            },
            "weights": {"kept": config.row.weights, "epoch": trained.epoch, "sha256": self._digest()},
        }

    def _digest(self) -> str | None:
        return sha256_of(self.out / WEIGHTS) if _distributed.rank() == 0 else None

    def _other_weights(self, trained: Trained, name: str) -> Evaluation:
        if trained.task is None:
            raise wrong("evaluation.also", "empty where the classifier alone is trained", name)
        model, epoch = trained.state.weights(name, trained.task.unseen_images)
        return self._evaluated(trained, model, epoch, histograms=False)

    def _evaluated(self, trained: Trained, model: nn.Module, epoch: int, *, histograms: bool = True) -> Evaluation:
        config, dataset, preprocess = self.config, self.dataset, trained.preprocess
        try:
            found = evaluate_with(config, model, dataset, preprocess, progress=self.progress, histograms=histograms)
        except FloatingPointError:
            raise DivergedError(config.method, epoch, None) from None
        return found.model_copy(update={"epoch": epoch})

    def _trained(self) -> Trained:
        # Before the claim: weights that do not fit must leave nothing behind.
        setup = with_noise(set_up(self.config, self.dataset), self.config, self.dataset)
        self._claim()
        with self._saving(setup.state) as hooks:
            if self.progress and _distributed.rank() == 0 and setup.state.epochs_done < self.config.train.epochs:
                for line in summary(self.config, self.dataset, setup):
                    say(line)
            fit(setup.state, setup.task, self.config.engine, hooks=hooks, progress=self.progress)
        model, epoch = setup.state.weights(self.config.row.weights, setup.task.unseen_images)
        return Trained(model, epoch, setup.preprocess, setup.state, setup.task)

    def _finetuned(self) -> Trained:
        config, dataset = self.config, self.dataset
        network = load_network(config, dataset)
        preprocess = preprocessing_of(config, dataset, network)
        self._claim()
        check_resumable(config, directory.checkpoints_in(self.out))
        if _distributed.rank() == 0:
            if self.progress:
                say(f"{config.method}  {preprocessing_in_words(config, dataset, preprocess)}")
            _warn_of_seen(config, dataset)
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
        epoch = state.epochs_done
        if config.row.weights != "last":
            best, epoch = state.best.model(config.row.weights, state.model)
            network.load_state_dict(best.get_submodule("network").state_dict())
        return Trained(network, epoch, preprocess, state, None, {"features": seconds}, before)

    def _saving(self, state: TrainState) -> Any:
        checkpoints = directory.checkpoints_in(self.out)
        self.held.callback(close, self.tracking)
        return saving(
            state,
            self.config,
            checkpoints,
            resume=self.resume,
            progress=self.progress,
            data=seen(self.dataset),
            tracking=self.tracking,
            after_warmup=self.after_warmup,
        )

    def _claim(self) -> None:
        """Let rank 0 claim the directory; the others wait for it."""
        if _distributed.rank() == 0:
            config, upgrade = self.config.to_dict(), partial(comparable, self.config)
            directory.check(self.out, config, resume=self.resume, upgrade=upgrade)
            self.held.enter_context(locked(self.out))
            directory.claim(self.out, config, resume=self.resume, upgrade=upgrade)
        _distributed.barrier()


def _warn_of_chance(accuracy: float, classes: int) -> None:
    if accuracy < 1.5 / classes and classes > 2:
        warnings.warn(
            f"The checkpoint is right on {accuracy:.1%} of the validation images, hardly more than by chance. Does it "
            "have other classes, another order of them, or another normalisation (train.mean, train.std)?",
            stacklevel=2,
        )


def _warn_of_seen(config: Config, dataset: Dataset) -> None:
    """Warn that a checkpoint may have been trained on what is held out here, unless its run held out the same."""
    if not dataset.cut_from_train or held_out_the_same(Path(config.finetuned_from or ""), config):
        return
    parts = " and ".join(dataset.cut_from_train)
    warnings.warn(
        f"The {parts} images were cut out of the training images, and the checkpoint may have been trained on them: "
        f"what is measured on them, and temperatures fitted on them, may be too good. {_REMEDY}",
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
