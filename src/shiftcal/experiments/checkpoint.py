"""Checkpoints: one directory each, renamed into place when whole, with checksums of its files."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor, nn

from shiftcal._errors import CheckpointError, reason_of
from shiftcal._io import read_json, sha256_of, to_json, write_atomically
from shiftcal.models import load_weights
from shiftcal.models.weights import class_metadata
from shiftcal.records import WEIGHTS

T = TypeVar("T")
_KEEP = 2
_STATE, _HISTORY, _SUMS = "state.pt", "history.json", "checksums.json"
BEST = "best-"
_NAME = re.compile(r"epoch-(?P<epoch>\d+)(-step-(?P<step>\d+))?")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
PATIENCE = 600.0  # seconds that the end of a run waits for room
_WAIT = 5.0


def save_weights(path: Path, model: nn.Module, classes: Sequence[str] = ()) -> None:
    """Write a model's weights as safetensors, with the names of its classes; shared ones are written for each layer."""
    write_atomically(path, _weights(model.state_dict(), class_metadata(classes) if classes else None))


def _weights(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    copied = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return safetensors.torch.save(copied, metadata)


def name_of(epochs: int, steps: int = 0) -> str:
    """Name a checkpoint by the epochs done and the steps of the one under way."""
    return f"epoch-{epochs:04d}" + (f"-step-{steps:07d}" if steps else "")


def checkpoints(directory: Path) -> list[Path]:
    """List the checkpoints in a directory, oldest first."""
    return _by_time(directory.glob("epoch-*"))


def best_checkpoints(directory: Path) -> list[Path]:
    """List the best checkpoint, if there is one."""
    return _by_time(directory.glob(f"{BEST}epoch-*"))


def epochs_in(directory: Path) -> set[int]:
    """List the epochs at whose end there are checkpoints, the best one among them."""
    found = (_NAME.fullmatch(path.name.removeprefix(BEST)) for path in directory.glob("*epoch-*"))
    return {int(match["epoch"]) for match in found if match and not match["step"]}


def epochs_done(directory: Path) -> int:
    """Return how many whole epochs the last checkpoint in a directory has; 0 without one."""
    found = [_NAME.fullmatch(path.name) for path in checkpoints(directory)[-1:]]
    return next((int(match["epoch"]) for match in found if match), 0)


def _by_time(paths: Iterable[Path]) -> list[Path]:
    """Sort checkpoints by epoch and step; what has another name is none."""
    timed = [(when, path) for path in paths if (when := _time_of(path)) is not None]
    return [path for _, path in sorted(timed)]


def _time_of(path: Path) -> tuple[int, int] | None:
    """Return the epochs that a checkpoint has, and the steps of the one under way; None for what is none."""
    match = _NAME.fullmatch(path.name.removeprefix(BEST))
    return (int(match["epoch"]), int(match["step"] or 0)) if match else None


class Saver:
    """Writes checkpoints in a thread of its own, so that training does not wait for the disk.

    A checkpoint that cannot be written, for want of room, is reported and leaves those before it as they are.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._thread: threading.Thread | None = None

    def save(
        self,
        name: str,
        model: nn.Module,
        state: dict[str, Any],
        history: list[dict[str, Any]],
        *,
        best: bool = False,
        warn: Callable[[str], None] = print,
    ) -> None:
        """Copy a run's state and start to write it, once the one before is written."""
        self.wait()
        parts = (_snapshot(model.state_dict()), _snapshot(state), to_json(history))
        self._thread = threading.Thread(target=self._write, args=(name, *parts, best, warn))
        self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint under way is written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(
        self,
        name: str,
        tensors: dict[str, Tensor],
        state: Any,
        history: bytes,
        best: bool,
        warn: Callable[[str], None],
    ) -> None:
        try:
            write_it = partial(write, self.directory, name, tensors, state, history)
            path = with_room(write_it, self.directory, f"checkpoint {name}", patience=0, warn=warn)
            if best:
                keep_best(path)
        except OSError as error:
            warn(f"WARNING: {self.directory / name} could not be written, training continues without it: {error}")


def with_room(
    write: Callable[[], T],
    directory: Path,
    what: str,
    *,
    patience: float | None = None,
    warn: Callable[[str], None] = print,
) -> T:
    """Write; where the disk is full remove older checkpoints, then wait for room, and tell so."""
    patience = PATIENCE if patience is None else patience
    waited = 0.0
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            if removed := make_room(directory):
                warn(f"WARNING: no room for {what}. Removed: {', '.join(path.name for path in removed)}.")
                continue
            if waited >= patience:
                raise
        if waited == 0:
            warn(f"WARNING: no room for {what}. Waiting for {patience / 60:.0f} minutes: make some.")
        time.sleep(_WAIT)
        waited += _WAIT


def make_room(directory: Path) -> list[Path]:
    """Remove all checkpoints but the last one that is whole, and return what was removed."""
    last = next((path for path in reversed(checkpoints(directory)) if is_whole(path)), None)
    others = [path for path in (*best_checkpoints(directory), *checkpoints(directory)) if path != last]
    if last is None:
        return []
    for path in others:
        shutil.rmtree(path, ignore_errors=True)
    return others


def is_whole(path: Path) -> bool:
    """Tell whether a checkpoint's files are those that were written."""
    try:
        check(path)
    except CheckpointError:
        return False
    return True


def write(directory: Path, name: str, tensors: dict[str, Tensor], state: Any, history: bytes) -> Path:
    """Write a checkpoint and remove all but the last two.

    Later ones are removed too: they are damaged, or training would have resumed from them.
    """
    final, temporary = directory / name, directory / f".{name}.tmp"
    for left in directory.glob(".*.tmp"):  # by a kill: this process alone writes here
        shutil.rmtree(left, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        contents = {WEIGHTS: _weights(tensors), _STATE: buffer.getvalue(), _HISTORY: history}
        for file, content in contents.items():
            write_atomically(temporary / file, content)
        sums = {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}
        write_atomically(temporary / _SUMS, to_json(sums))
        shutil.rmtree(final, ignore_errors=True)  # of the same name only if it was damaged
        temporary.rename(final)
        _sync(directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _remove_others(directory, final)
    return final


def _remove_others(directory: Path, newest: Path) -> None:
    found = checkpoints(directory)
    if newest not in found:
        return  # the best one of another run, which shares its warm-up
    last = found.index(newest) + 1
    for other in (*found[: max(last - _KEEP, 0)], *found[last:]):
        shutil.rmtree(other, ignore_errors=True)


def keep_best(path: Path) -> None:
    """Keep a checkpoint beside the last ones as the best so far, in place of the one that was."""
    final, temporary = path.with_name(f"{BEST}{path.name}"), path.with_name(f".{BEST}{path.name}.tmp")
    shutil.copytree(path, temporary, copy_function=_link)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for old in path.parent.glob(f"{BEST}*"):
        if old != final:
            shutil.rmtree(old, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def _sync(directory: Path) -> None:
    """Make sure that a rename in a directory outlives a power cut; Windows opens no directories."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _snapshot(value: Any) -> Any:
    """Copy tensors, wherever in a state they are, to the host."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _snapshot(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_snapshot(item) for item in value)
    return value


def load(path: Path, model: nn.Module) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read a checkpoint: weights into the model; returns the state and the history."""
    check(path)
    load_weights(path / WEIGHTS, model)
    return load_state(path), read_json(path / _HISTORY)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], list[dict[str, Any]]]:
    """Read a checkpoint: weights, state and history."""
    check(path)
    return safetensors.torch.load_file(path / WEIGHTS), load_state(path), read_json(path / _HISTORY)


def load_state(path: Path) -> dict[str, Any]:
    """Read the state in a checkpoint that is whole."""
    try:
        state: dict[str, Any] = torch.load(path / _STATE, map_location="cpu", weights_only=True)
        dict(state["config"]), int(state["epochs"])
    except Exception as error:  # files with right checksums that were never ours
        raise CheckpointError("checkpoint", "one of this program's", f"{path}: {reason_of(error)}") from None
    return state


def check(path: Path) -> None:
    """Raise unless a checkpoint's files are those that were written."""
    try:
        sums = read_json(path / _SUMS)
        changed = [file for file, digest in sums.items() if sha256_of(path / file) != digest]
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError("checkpoint", "whole", f"{path}: {error}") from None
    if changed or not sums:
        found = f"{path}, whose {', '.join(changed) or _SUMS} changed"
        raise CheckpointError("checkpoint", "whole", found)
