"""Files that cannot be read, by one rule: they are left out, counted and named; one in a hundred or more is an error.

All of them are then listed in a file: `unreadable.txt` in the output directory, where there is one.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from shiftcal._errors import UnreadableError
from shiftcal._io import UNREADABLE, write_atomically


def check_unreadable(failures: Sequence[str], count: int) -> None:
    """Raise if one in a hundred of so many files, or more, could not be read; their list goes to a temporary folder."""
    if too_many(len(failures), count):
        folder = Path(tempfile.mkdtemp(prefix="shiftcal-"))
        raise UnreadableError(failures, count, _write_list(failures, folder))


def too_many(failed: int, count: int) -> bool:
    """Tell whether so many unreadable files are too many of all."""
    return failed > 0 and failed >= count / 100


def name_unreadable(failure: str, number: int, count: int) -> None:
    """Name a file that is left out, the `number`-th of all."""
    warnings.warn(f"An image could not be read and is left out: {failure} ({number} of {count} so far)", stacklevel=3)


@contextmanager
def listing_in(out: Path | None) -> Iterator[None]:
    """Let the list of unreadable files be in an output directory, and remove an earlier one from it."""
    if out is None:
        yield
        return
    (out / UNREADABLE).unlink(missing_ok=True)
    try:
        yield
    except UnreadableError as error:
        raise _moved(error, out) from None


def _moved(error: UnreadableError, out: Path) -> UnreadableError:
    """Move the list to an output directory; where that cannot be written, it stays where it is."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        path = _write_list(error.failures, out)
    except OSError:
        return error
    with suppress(OSError):
        error.saved_to.unlink()
        error.saved_to.parent.rmdir()
    return UnreadableError(error.failures, error.count, path)


def _write_list(failures: Sequence[str], folder: Path) -> Path:
    lines = "".join(f"{failure}\n" for failure in failures)
    write_atomically(folder / UNREADABLE, lines.encode(errors="surrogateescape"))
    return folder / UNREADABLE
