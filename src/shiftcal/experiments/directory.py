"""The directory of a run: whose it is, and what it holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from shiftcal import _distributed
from shiftcal._errors import RunDirectoryError
from shiftcal._io import UNREADABLE, first_difference, is_free, read_object, to_json, write_atomically
from shiftcal._lock import locked
from shiftcal.records import CONFIG, RECORD, SPEED_KEYS

BAD_BATCH = "bad-batch.json"
# Keys that may change when a run is resumed: what was trained can always be evaluated.
RESUMABLE_KEYS = SPEED_KEYS | {"evaluation"}
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
    stored = upgrade(read_object(out / CONFIG))
    if differing := first_difference(config, stored, ignored=RESUMABLE_KEYS):
        expected = "empty, new, or the directory of the same run (with the same --set options)"
        raise RunDirectoryError("out", expected, f"{out}, where another run has {differing}")
    if (out / RECORD).is_file() and (differing := first_difference(config, stored, ignored=SPEED_KEYS)):
        expected = "that of a run with the same evaluation (`shiftcal eval DIR --set …` evaluates a finished one again)"
        raise RunDirectoryError("out", expected, f"{out}, which was evaluated with {differing}")
    if not resume:
        expected = "empty or new (--resume continues a run)"
        raise RunDirectoryError("out", expected, f"{out}, which holds this run already")


def claim(out: Path, config: dict[str, Any], *, resume: bool, upgrade: Upgrade = dict) -> None:
    """Make the directory of a run, or make sure that the one there is this very run."""
    check(out, config, resume=resume, upgrade=upgrade)
    if _has_not_begun(out) or first_difference(config, upgrade(read_object(out / CONFIG))):
        data = to_json(config)
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / CONFIG, data)


def claim_again(out: Path, config: dict[str, Any], upgrade: Upgrade = dict) -> None:
    """Make sure at the end of a run that its directory is still its own; what was deleted is written again."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / CONFIG).is_file():
        warnings.warn(f"{out / CONFIG} was deleted during the run. It is written again.", stacklevel=2)
        write_atomically(out / CONFIG, to_json(config))
    elif differing := first_difference(config, upgrade(read_object(out / CONFIG)), ignored=SPEED_KEYS):
        found = f"{out}, where {CONFIG} became that of another run with {differing}"
        raise RunDirectoryError("out", "the directory of this run until its end", found)


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold a directory, see `locked`; of several ranks the first one does."""
    with locked(out) if _distributed.rank() == 0 else nullcontext():
        yield


def is_free_or_a_run(out: Path) -> bool:
    """Tell whether a run may write into a directory: it is free, or it is that of a run."""
    return _has_not_begun(out) or (out / CONFIG).is_file()


def _has_not_begun(out: Path) -> bool:
    """Tell whether a directory is free, but for what a run leaves there before its first checkpoint."""
    if not out.is_dir():
        return True
    known = (CONFIG, BAD_BATCH, UNREADABLE)
    rest = [path for path in out.iterdir() if path.name not in known and not path.name.endswith(".tmp")]
    return all(path == checkpoints_in(out) and is_free(path) for path in rest)
