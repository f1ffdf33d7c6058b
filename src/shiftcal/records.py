"""Run directories and records: what a run leaves behind, always written whole or not at all. Never imports torch."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import socket
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shiftcal._checks import wrong

CONFIG, RECORD, WEIGHTS = "config.json", "record.json", "model.safetensors"
BAD_BATCH = "bad-batch.json"
SCHEMA = 2
_LOCK = ".lock.tmp"


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name beside the target, sync and rename: a kill leaves the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # Ctrl-C too
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: object) -> None:
    """Write JSON atomically; NaN and infinity, which JSON does not have, are an error."""
    write_atomically(path, to_json(content))


def to_json(content: object) -> bytes:
    """Encode JSON, refusing NaN and infinity."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """Read JSON; a damaged file is an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise wrong("path", "a whole JSON file", f"{path}: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise wrong("path", "a JSON object", f"{path}, which holds a {type(content).__name__}")
    return content


Now = Callable[[dict[str, Any]], dict[str, Any]]
# Keys in which runs may differ that are otherwise the same: they decide how fast a run is, not what it does.
_FREE = frozenset({"data.workers", "engine.capture", "engine.compile", "train.track"})


def check(out: Path, config: dict[str, Any], *, resume: bool, now: Now = dict) -> None:
    """Raise unless a directory is free for a run or, with `resume`, holds this very run. Nothing is written.

    `now` turns a config that an earlier version wrote into one of today's.
    """
    if out.exists() and not out.is_dir():
        raise wrong("out", "a directory", f"{out}, a file")
    if _is_unbegun(out):
        return
    if not (out / CONFIG).is_file():
        raise wrong("out", "empty, new, or the directory of a run", f"{out}, which holds other files")
    differing = first_difference(config, now(read_object(out / CONFIG)))
    if differing:
        expected = "empty, new, or the directory of the same run (with the same --set options)"
        raise wrong("out", expected, f"{out}, where another run has {differing}")
    if not resume:
        raise wrong("out", "empty or new (--resume continues a run)", f"{out}, which holds this run already")


def claim(out: Path, config: dict[str, Any], *, resume: bool, now: Now = dict) -> None:
    """Make the directory of a run, or make sure that the one there is this very run."""
    check(out, config, resume=resume, now=now)
    if _is_unbegun(out):
        data = to_json(config)
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / CONFIG, data)


def is_free(out: Path) -> bool:
    """Tell whether a directory is new or empty, but for what a killed process left half-written."""
    return not out.is_dir() or all(path.name.endswith(".tmp") for path in out.iterdir())


def _is_unbegun(out: Path) -> bool:
    """Tell whether a directory is free, but for what a run leaves there before its first checkpoint."""
    if not out.is_dir():
        return True
    rest = [path for path in out.iterdir() if path.name not in (CONFIG, BAD_BATCH) and not path.name.endswith(".tmp")]
    return all(path.name == "checkpoints" and is_free(path) for path in rest)


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
            raise wrong("out", "a directory in which no other process trains", found) from None
        except OSError:  # a file system without locks
            pass
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def first_difference(mine: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> str | None:
    """Name the first key in which two configurations differ, with both values; None if there is none."""
    for key in sorted(mine.keys() | theirs.keys()):
        if f"{prefix}{key}" in _FREE:
            continue
        a, b = _plain(mine.get(key)), _plain(theirs.get(key))
        if isinstance(a, dict) and isinstance(b, dict):
            if inner := first_difference(a, b, f"{prefix}{key}."):
                return inner
        elif a != b:
            return f"{prefix}{key} = {b} instead of {a}"
    return None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def find_runs(directory: Path) -> list[Path]:
    """Find the runs in a directory: itself, or those directly below it, in order of their names."""
    if not directory.is_dir():
        raise wrong("directory", "the directory of a run, or one that holds runs", str(directory))
    names = (CONFIG, RECORD)
    if any((directory / name).is_file() for name in names):
        return [directory]
    found = {path.parent for name in names for path in directory.glob(f"*/{name}")}
    if not found:
        raise wrong("directory", "the directory of a run, or one that holds runs", f"{directory}, without {CONFIG}")
    return sorted(found)


def load_records(directory: Path) -> list[dict[str, Any]]:
    """Read the records of the finished runs in a directory; that there is none is an error."""
    paths = [run / RECORD for run in find_runs(directory)]
    records = [read_record(path) for path in paths if path.is_file()]
    unfinished = [path.parent.name for path in paths if not path.is_file()]
    if unfinished and records:
        warnings.warn(f"Left out, since they are not finished: {', '.join(unfinished)}.", stacklevel=2)
    if not records:
        raise wrong("directory", "one with finished runs (`shiftcal train … --resume` finishes one)", str(directory))
    return records


def read_record(path: Path) -> dict[str, Any]:
    """Read a run's record; one that lacks what every record has is an error."""
    try:
        record = read_object(path)
    except ValueError as error:
        raise ValueError(f"{error} The command that made the run makes it again, with --resume.") from None
    missing = {"schema", "method", "seed", "config", "history", "evaluation"} - record.keys()
    if missing:
        raise wrong("path", "a run's record", f"{path}, without {', '.join(sorted(missing))}")
    return record


def environment() -> dict[str, Any]:
    """Describe the software and the machine, for a record."""
    names = ("shiftcal", "torch", "numpy", "pillow")
    return {
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in names},
        "machine": {"system": platform.system(), "processor": _processor(), "cores": cores()},
        "revision": _revision(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _revision() -> str | None:
    """Return the commit of the source tree, marked if it has changes; None where git does not track this file."""
    here = Path(__file__)
    tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") if tracked else None


def _git(directory: Path, *words: str) -> str | None:
    command = ["git", "-C", str(directory), *words]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
