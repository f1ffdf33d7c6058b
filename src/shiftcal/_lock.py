"""One process at a time in a directory. Never imports torch."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from shiftcal._errors import RunDirectoryError

try:
    import fcntl
except ImportError:  # Windows: nothing keeps a second process out
    fcntl = None  # type: ignore[assignment]

_LOCK = ".lock.tmp"
_HELD: set[Path] = set()  # by this process, for which the system's locks are one


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold a directory for one caller; that somebody else holds it is an error. The lock ends with the process.

    What a killed process left half-written there, files under temporary names, is removed.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out.resolve() / _LOCK
    if path in _HELD:
        raise _in_use(out, "this process")
    with _open_locked(path) as file:
        _HELD.add(path)
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            for left in out.glob(".*.tmp"):
                if left.name != _LOCK and left.is_file():
                    left.unlink(missing_ok=True)
            yield
        finally:
            _HELD.discard(path)
            if _is_at(file, path):  # a directory that was removed may be another process's by now
                with suppress(PermissionError):  # Windows keeps a file that is open; the next process takes it up
                    path.unlink(missing_ok=True)


def _open_locked(path: Path) -> IO[str]:
    """Open and lock a file. One that its holder removed while this process waited for it is opened anew."""
    while True:
        file = path.open("a+", encoding="utf-8")
        if fcntl is None:
            return file
        try:
            # Not flock, which the workers of a loader would inherit and hold when their parent is killed.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            raise _in_use(path.parent, holder) from None
        except OSError:  # a file system without locks
            return file
        if _is_at(file, path):
            return file
        file.close()


def _in_use(out: Path, holder: str) -> RunDirectoryError:
    return RunDirectoryError("out", "a directory that nobody else is using", f"{out}, in use by {holder}")


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
