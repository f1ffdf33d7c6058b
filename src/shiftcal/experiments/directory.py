"""The directory of a run: whose it is, what it holds, and one process at a time in it."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shiftcal._errors import RunDirectoryError
from shiftcal._io import first_difference, is_free, read_object, to_json, write_atomically
from shiftcal.records import CONFIG

BAD_BATCH = "bad-batch.json"
_LOCK = ".lock.tmp"
# Keys in which runs may differ that are otherwise the same: they decide how fast a run is, not what it does.
FREE_KEYS = frozenset({"data.workers", "engine.capture", "engine.compile", "train.track"})
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


def checkpoints_in(out: Path) -> Path:
    """Say where a run keeps its checkpoints."""
    return out / "checkpoints"


def check(out: Path, config: dict[str, Any], *, resume: bool, upgrade: Upgrade = dict) -> None:
    """Raise unless a directory is free for a run or, with `resume`, holds this very run. Nothing is written.

    `upgrade` turns a config that an earlier version wrote into one of today's.
    """
    if out.exists() and not out.is_dir():
        raise RunDirectoryError("out", "a directory", f"{out}, a file")
    if _has_not_begun(out):
        return
    if not (out / CONFIG).is_file():
        raise RunDirectoryError("out", "empty, new, or the directory of a run", f"{out}, which holds other files")
    differing = first_difference(config, upgrade(read_object(out / CONFIG)), ignored=FREE_KEYS)
    if differing:
        expected = "empty, new, or the directory of the same run (with the same --set options)"
        raise RunDirectoryError("out", expected, f"{out}, where another run has {differing}")
    if not resume:
        expected = "empty or new (--resume continues a run)"
        raise RunDirectoryError("out", expected, f"{out}, which holds this run already")


def claim(out: Path, config: dict[str, Any], *, resume: bool, upgrade: Upgrade = dict) -> None:
    """Make the directory of a run, or make sure that the one there is this very run."""
    check(out, config, resume=resume, upgrade=upgrade)
    if _has_not_begun(out):
        data = to_json(config)
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / CONFIG, data)


def _has_not_begun(out: Path) -> bool:
    """Tell whether a directory is free, but for what a run leaves there before its first checkpoint."""
    if not out.is_dir():
        return True
    rest = [path for path in out.iterdir() if path.name not in (CONFIG, BAD_BATCH) and not path.name.endswith(".tmp")]
    return all(path == checkpoints_in(out) and is_free(path) for path in rest)


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold a directory for this process; that another one holds it is an error. The lock ends with the process."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / _LOCK
    with path.open("a+", encoding="utf-8") as file:
        try:
            # Not flock, which the workers of a loader would inherit and hold when their parent is killed.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            found = f"{out}, where {file.read() or 'another process'} does"
            raise RunDirectoryError("out", "a directory in which no other process trains", found) from None
        except OSError:  # a file system without locks
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
