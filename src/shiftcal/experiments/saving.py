"""What a run writes while it trains: checkpoints and logs; and how it continues from them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shiftcal import _distributed
from shiftcal._errors import CheckpointError, DivergedError, reason_of, wrong
from shiftcal._io import first_difference, write_json
from shiftcal._progress import Progress, say
from shiftcal.experiments import checkpoint, directory
from shiftcal.experiments.config import Config, stored_config
from shiftcal.experiments.interrupt import Interrupt
from shiftcal.experiments.setup import other_data
from shiftcal.experiments.tracking import Tracking
from shiftcal.training.loop import Hooks
from shiftcal.training.state import TrainState

AfterWarmup = Callable[[Path], None]


@contextmanager
def saving(
    state: TrainState,
    config: Config,
    checkpoints: Path | None,
    *,
    resume: bool,
    progress: bool = True,
    data: Mapping[str, Any] | None = None,
    tracking: Tracking | None = None,
    after_warmup: AfterWarmup | None = None,
) -> Iterator[Hooks]:
    """Continue a state from its last checkpoint, if there is one, and save it after epochs and on a signal.

    Yields the hooks for `fit`. After a signal the process ends as the signal would have ended it. `data` tells the
    run's data from others, see `seen`. With `tracking`, that one is started and told; the caller closes it.
    `after_warmup` is given the checkpoint of the last epoch before filter and constraint start, on rank 0.
    """
    taken = None
    if checkpoints and checkpoint.checkpoints(checkpoints):
        if not resume:
            found = checkpoint.checkpoints(checkpoints)[-1]
            raise wrong("checkpoints", "a directory without checkpoints (resume=True continues)", str(found))
        taken = restore(state, config, checkpoints, data)
    unfinished = state.epochs_done < _epochs(config)
    if taken is not None and unfinished and progress and _distributed.rank() == 0:
        by = state.history[-1].get("trained_by") if state.history else None
        say(f"{config.method}  resumes from {taken.name}{f', trained by {by}' if by else ''}")
    first = checkpoints if checkpoints and _distributed.rank() == 0 else None
    with Interrupt(enabled=checkpoints is not None) as interrupt:
        hooks = _SavingHooks(config, first, interrupt, tracking, after_warmup, data)
        try:
            yield hooks
        except DivergedError as error:
            if first:
                _write_bad_batch(error, first.parent / directory.BAD_BATCH)
            raise
        finally:
            hooks.close()
        if interrupt.asked is not None and state.epochs_done < _epochs(config):
            interrupt.leave()


def _epochs(config: Config) -> int:
    """Return how many epochs a run has: those of the whole network, or of the classifier alone."""
    return config.finetune.epochs if config.finetuned_from else config.train.epochs


def _write_bad_batch(error: DivergedError, path: Path) -> None:
    with suppress(OSError):  # what went wrong is told in any case
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, error.batch)
        error.saved_to = path


class _SavingHooks(Hooks):
    """Writes checkpoints and logs, and stops on a signal. What cannot be written is told, and training continues."""

    def __init__(
        self,
        config: Config,
        checkpoints: Path | None,
        interrupt: Interrupt,
        tracking: Tracking | None = None,
        after_warmup: AfterWarmup | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self._config, self._interrupt, self._after_warmup = config, interrupt, after_warmup
        self._data = {} if data is None else {"data": dict(data)}
        self._warmup = None if after_warmup is None else config.train.start_epoch
        self._saved = checkpoint.epochs_in(checkpoints) if checkpoints else set()
        self.after_step = interrupt.after_step  # type: ignore[method-assign]
        self._saver = checkpoint.Saver(checkpoints) if checkpoints else None
        self._closes = tracking is None
        self._tracking = (tracking or Tracking(checkpoints.parent, config)) if checkpoints else None
        if self._tracking:
            self._tracking.start()

    def paused(self, state: TrainState, bar: Progress) -> None:
        self._save(state, bar, best=False)

    def after_epoch(self, state: TrainState, bar: Progress) -> bool:
        stop = self._interrupt.now()
        if stop or self._is_due(state.epochs_done):
            self._saved.add(state.epochs_done)
            saved = [entry for entry in state.history if entry["epoch"] in self._saved or self._is_due(entry["epoch"])]
            losses = [entry["validation"]["nll"] for entry in saved if entry.get("validation")]
            latest = state.history[-1].get("validation") or {}
            self._save(state, bar, best="nll" in latest and latest["nll"] == min(losses))
        if self._saver and self._after_warmup and state.epochs_done == self._warmup:
            self._saver.wait()
            self._after_warmup(self._saver.directory / checkpoint.name_of(state.epochs_done))
        if self._tracking:
            try:
                self._tracking.log(state.history)
            except OSError as error:
                bar.line(f"WARNING: the log could not be written, training continues without it: {error}")
        return stop

    def _is_due(self, epoch: int) -> bool:
        every = self._config.engine.checkpoint_every
        return epoch % every == 0 or epoch in (self._warmup, _epochs(self._config))

    def close(self) -> None:
        if self._saver:
            self._saver.wait()
        if self._tracking and self._closes:
            close(self._tracking)

    def _save(self, state: TrainState, bar: Progress, *, best: bool) -> None:
        if self._saver:
            name = checkpoint.name_of(state.epochs_done, state.steps_done)
            content = state.state_dict() | {"config": self._config.to_dict()} | self._data
            self._saver.save(name, state.model, content, state.history, best=best, warn=bar.line)


def close(tracking: Tracking) -> None:
    """Close trackers; that they cannot be closed is told."""
    try:
        tracking.close()
    except OSError as error:
        say(f"WARNING: the trackers could not be closed: {error}")


def restore(state: TrainState, config: Config, checkpoints: Path, data: Mapping[str, Any] | None = None) -> Path:
    """Continue from the last checkpoint that is whole, or else the best one, and warn of those that are not."""
    found = [*checkpoint.best_checkpoints(checkpoints), *checkpoint.checkpoints(checkpoints)]
    while found:
        path = found.pop()
        try:
            stored, history = checkpoint.load(path, state.model)
        except CheckpointError as error:
            warnings.warn(f"{error} {f'{found[-1].name} is tried instead.' if found else ''}".strip(), stacklevel=2)
            continue
        _check_same_run(config, stored, path)
        if data is not None and (differing := other_data(data, stored.get("data", data))):
            expected = "those of a run on the same data (train on changed data in a new directory)"
            raise wrong("checkpoints", expected, f"{path}, whose data had {differing}")
        try:
            state.load_state_dict(stored, history)
        except CheckpointError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:  # right sums, wrong content
            raise CheckpointError("checkpoints", "those of this program", f"{path}: {reason_of(error)}") from None
        return path
    expected = "a directory with a whole checkpoint (remove it to train from the beginning)"
    raise CheckpointError("checkpoints", expected, f"{checkpoints}, where all are damaged")


def _check_same_run(config: Config, stored: dict[str, Any], path: Path) -> None:
    if config.finetuned_from and "within" in stored:
        expected = "of a fine-tuning that this version began (remove the directory to start anew)"
        raise CheckpointError("checkpoints", expected, f"{path}, of an earlier version")
    theirs = stored_config(stored["config"], path, config)
    if differing := first_difference(config.to_dict(), theirs.to_dict(), ignored=directory.RESUMABLE_KEYS):
        raise wrong("checkpoints", "those of the same run", f"{path}, where another run has {differing}")
    if more := set(config.evaluation.also) - {*theirs.evaluation.also, theirs.row.weights, "last"}:
        kept = ", ".join(sorted({*theirs.evaluation.also, theirs.row.weights, "last"}))
        raise wrong("evaluation.also", f"of {kept}, which the run keeps since it began", ", ".join(sorted(more)))


def check_resumable(config: Config, checkpoints: Path) -> None:
    """Raise if the last checkpoint is one that cannot be continued from; for what takes long before it is read."""
    for path in checkpoint.checkpoints(checkpoints)[-1:]:
        try:
            checkpoint.check(path)
        except CheckpointError:
            return  # `restore` tells of it, and takes another
        _check_same_run(config, checkpoint.load_state(path), path)
