"""Errors: one format for wrong arguments, and exceptions with fields for everything else that can fail."""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any


class ParameterError(ValueError):
    """An argument, option or key with a wrong value: what was expected, and what was found."""

    def __init__(self, name: str, should: str, found: object, hint: str = "") -> None:
        self.name, self.should, self.found, self.hint = name, should, found, hint
        super().__init__(f"Parameter `{name}` should be {should}. Found `{name} = {found}`.{hint}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.should, self.found, self.hint)


class DataError(ParameterError):
    """A file or folder of data that is not what it should be."""


class ImageError(DataError):
    """An image file that cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__("image", "readable", self.in_words())

    def in_words(self) -> str:
        """Name the file, and tell what is wrong with it."""
        return f"{self.path}: {self.reason}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class UnreadableError(DataError):
    """Too many image files that cannot be read.

    Attributes:
        failures: Each of them, with what is wrong with it.
        count: How many files there are in all.
        saved_to: The file that lists them.
    """

    def __init__(self, failures: Sequence[str], count: int, saved_to: Path) -> None:
        self.failures, self.count, self.saved_to = tuple(failures), count, saved_to
        expected = "readable, at least 99 % of them (remove or replace the others; --resume continues a run)"
        more = "; …" if len(failures) > 5 else ""
        found = f"{len(failures)} unreadable of {count}: {'; '.join(failures[:5])}{more}"
        super().__init__("images", expected, found, f" All are listed in {saved_to}.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.failures, self.count, self.saved_to)


class DownloadError(OSError):
    """A file that could not be fetched."""

    def __init__(self, url: str, reason: str, advice: str) -> None:
        self.url, self.reason, self.advice = url, reason, advice
        super().__init__(f"{url} could not be fetched: {reason}. {advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.reason, self.advice)


class ExportError(Exception):
    """A model that cannot be exported, or whose export does not give what the model gives."""

    def __init__(self, file: Path, reason: str) -> None:
        self.file, self.reason = file, reason
        super().__init__(f"{file} was not written: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.reason)


class RunDirectoryError(ParameterError):
    """A directory that cannot be that of a run: it is another's, in use, damaged or unfinished."""


class CheckpointError(ParameterError):
    """A checkpoint whose files are not those that were written."""


def reason_of(error: BaseException) -> str:
    """Write what an exception of somebody else's says in one line, with its type."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


TRACEBACK = "SHIFTCAL_TRACEBACK"  # a variable of the environment: show where an error comes from


def told(error: Exception) -> str:
    """Write in one line why a run of several failed: errors of ours say it, others need their type.

    With `SHIFTCAL_TRACEBACK` in the environment the traceback is printed too.
    """
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    return str(error) if isinstance(error, ParameterError | FloatingPointError) else reason_of(error)


class WorkerError(RuntimeError):
    """A process that decodes images and was killed, mostly for want of memory (`starved`), or failed."""

    @classmethod
    def told_by(cls, error: RuntimeError) -> WorkerError | None:
        """Recognise torch's error for it, which has no type of its own."""
        lines = str(error).strip().splitlines() or [""]
        if "DataLoader worker" not in lines[0]:
            return None
        frames = [k for k, line in enumerate(lines) if line.startswith(" ")]
        if not (lines[0].startswith("Caught ") and frames):
            return cls(lines[0].rstrip(". "))
        said = (lines[frames[-1] + 1 :] or lines[-1:])[0].rstrip(". ")  # an error in the worker, after its traceback
        return cls(said, "memory" in said)

    def __init__(self, reason: str, starved: bool = True) -> None:
        self.reason, self.starved = reason, starved
        advice = " Was there enough memory? Fewer of them take less (--set data.workers=N)." if starved else ""
        super().__init__(f"A process that decodes images ended: {reason}.{advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason, self.starved)


class DivergedError(FloatingPointError):
    """A run whose numbers are no longer finite.

    Attributes:
        method: The method of the run.
        epoch: The epoch, counted from 1.
        step: The first bad step of that epoch, counted from 1; None where it showed in validation or evaluation.
        batch: Which images that step had.
        saved_to: The file that lists them, where there is one.
    """

    ADVICE = "Lower the learning rate or clip the gradient (train.clip_norm)."

    def __init__(self, method: str, epoch: int, step: int | None, batch: Mapping[str, Any] | None = None) -> None:
        self.method, self.epoch, self.step, self.batch = method, epoch, step, dict(batch or {})
        self.saved_to: Path | None = None
        super().__init__(method, epoch, step, self.batch)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.method, self.epoch, self.step, self.batch), {"saved_to": self.saved_to}

    def __str__(self) -> str:
        if self.step is None:
            return f"The logits of method '{self.method}' were not finite after epoch {self.epoch}. {self.ADVICE}"
        where = f"The gradient of method '{self.method}' was not finite at step {self.step} of epoch {self.epoch}"
        saved = f" The batch: {self.saved_to}." if self.saved_to else ""
        return f"{where}; nothing was updated from there on. {self.ADVICE}{saved}"


class UnfinishedError(FloatingPointError):
    """Runs of a grid that failed, while the others finished."""

    def __init__(self, failed: Mapping[str, str], count: int) -> None:
        self.failed, self.count = dict(failed), count
        super().__init__(self.failed, count)

    def __str__(self) -> str:
        listed = " ".join(f"{name}: {message}" for name, message in self.failed.items())
        return f"{len(self.failed)} of {self.count} runs did not finish. {listed}"


def wrong(name: str, should: str, found: object) -> ParameterError:
    """Build the error "Parameter `x` should be …. Found `x = …`." (the caller raises it)."""
    return ParameterError(name, should, found)


def unknown(name: str, value: str, known: Iterable[str]) -> ParameterError:
    """Build the error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    return ParameterError(name, "one of " + ", ".join(names), repr(value), did_you_mean(value, names))


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """Write a hint to the nearest name that exists, to be put behind an error; nothing if none is near."""
    by_lower_case = {name.lower(): name for name in sorted(known)}
    nearest = difflib.get_close_matches(value.lower(), by_lower_case, n=1, cutoff=0.5)
    return f" Did you mean '{by_lower_case[nearest[0]]}'?" if nearest else ""


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise unless a value is an integer of some least size; NumPy's are."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise wrong(name, f"an integer of at least {least}", value)
