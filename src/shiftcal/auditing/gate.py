"""A gate for CI: does an audit stay within limits? Never imports torch."""

from __future__ import annotations

import math
import operator
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from shiftcal._errors import wrong
from shiftcal.records.audit import AuditCell, AuditRecord

Result = Literal["passed", "failed", "not judged"]
CODES: dict[Result, int] = {"passed": 0, "failed": 1, "not judged": 2}
_Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True)
class Limits:
    """What an audit must keep; None is no limit.

    Attributes:
        max_ece: Of the clean test set.
        max_shifted_ece: Of the mean over shifts.
        max_worst_ece: Of the shifted test set with the largest.
        min_accuracy: Of the clean test set.
        min_shifted_accuracy: Of the mean over shifts.
        calibrator: Judge what it is after this calibrator.
    """

    max_ece: float | None = None
    max_shifted_ece: float | None = None
    max_worst_ece: float | None = None
    min_accuracy: float | None = None
    min_shifted_accuracy: float | None = None
    calibrator: str | None = None


@dataclass(frozen=True)
class Check:
    """One limit, and what was found: a value with its 95 % interval, or why there is none."""

    name: str
    limit: float
    upper: bool
    value: float | None
    low: float = 0.0
    high: float = 1.0
    reason: str = ""
    no_interval: str = ""

    def result(self, *, strict: bool) -> Result:
        """Judge it by its value; strictly by the whole interval and the value, not at all if the limit lies among them.

        In audits of earlier versions the interval of an ECE may lie below its value.
        """
        if self.value is None:
            return "not judged"
        ends = (self.low, self.value, self.high) if strict else (self.value,)
        low, high = min(ends), max(ends)
        kept, broken = (high <= self.limit, low > self.limit) if self.upper else (low >= self.limit, high < self.limit)
        return "passed" if kept else "failed" if broken else "not judged"


def checks(record: AuditRecord, limits: Limits, where: Sequence[str] = ()) -> list[Check]:
    """Compare an audit with limits; `where` chooses shifted test sets, as in "corruption=fog" or "severity<=3"."""
    cells = chosen_cells(record, where)
    if where and not cells:
        raise wrong("where", "a condition that some shifted test set of the audit meets", ", ".join(where))
    name = limits.calibrator
    if name is not None:
        by_letters = {letters(fitted): fitted for fitted in record.clean.scaled}
        if letters(name) not in by_letters:
            raise wrong(
                "calibrator",
                f"one of {', '.join(record.clean.scaled)}" if record.clean.scaled else "left out: the audit has none",
                repr(name),
            )
        name = by_letters[letters(name)]
    worst = _worst(cells, name)
    which = f" ({' '.join(str(part) for part in (worst[0].shift, worst[0].severity) if part)})" if worst else ""
    found = [
        _ece("clean ECE", limits.max_ece, [record.clean], name),
        _ece("shifted ECE", limits.max_shifted_ece, cells, name, record if not where else None),
        _ece(f"worst shifted ECE{which}", limits.max_worst_ece, worst, name),
        _accuracy("clean accuracy", limits.min_accuracy, [record.clean], name),
        _accuracy("shifted accuracy", limits.min_shifted_accuracy, cells, name),
    ]
    return [check for check in found if check is not None]


def chosen_cells(record: AuditRecord, where: Sequence[str]) -> list[AuditCell]:
    """List the shifted test sets that meet all conditions."""
    conditions = [_condition(text) for text in where]
    return [cell for cell in record.shifts if all(condition(cell) for condition in conditions)]


def letters(name: str) -> str:
    """Return what counts of a calibrator's name.

    Example:
        >>> letters("temperature-augmented") == letters("temperature (augmented)")
        True
    """
    return re.sub(r"[^a-z]", "", name.lower())


def _worst(cells: Sequence[AuditCell], name: str | None) -> list[AuditCell]:
    return [max(cells, key=lambda cell: _value(cell, "ece", name))] if cells else []


def _value(cell: AuditCell, metric: str, name: str | None) -> float:
    value = cell.value(metric if name is None else f"{name}/{metric}")
    if value is None:
        raise wrong("calibrator", "one that was measured everywhere", repr(name))
    return value


def _ece(
    title: str, limit: float | None, cells: Sequence[AuditCell], name: str | None, whole: AuditRecord | None = None
) -> Check | None:
    if limit is None:
        return None
    if not cells:
        return Check(title, limit, upper=True, value=None, reason="there is no such test set in the audit")
    value = statistics.fmean(_value(cell, "ece", name) for cell in cells)
    if name is not None:  # intervals are those of the model as it is
        reason = "there are no intervals after a calibrator, which --strict asks for"
        return Check(title, limit, upper=True, value=value, no_interval=reason)
    below = statistics.fmean(cell.ece - cell.ece_low for cell in cells)
    above = statistics.fmean(cell.ece_high - cell.ece for cell in cells)
    if whole is not None and whole.shifted is not None:
        below, above = whole.shifted.ece - whole.shifted.ece_low, whole.shifted.ece_high - whole.shifted.ece
    return Check(title, limit, upper=True, value=value, low=max(value - below, 0.0), high=min(value + above, 1.0))


def _accuracy(title: str, limit: float | None, cells: Sequence[AuditCell], name: str | None) -> Check | None:
    if limit is None:
        return None
    if not cells:
        return Check(title, limit, upper=False, value=None, reason="there is no such test set in the audit")
    value = statistics.fmean(_value(cell, "accuracy", name) for cell in cells)
    low, high = wilson(value, min(cell.n or 1 for cell in cells))
    return Check(title, limit, upper=False, value=value, low=low, high=high)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of n (Wilson, 1927).

    Example:
        >>> [round(end, 3) for end in wilson(0.9, 100)]
        [0.826, 0.945]
    """
    middle = share + _Z**2 / (2 * n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    return (middle - half) / (1 + _Z**2 / n), (middle + half) / (1 + _Z**2 / n)


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {"<=": operator.le, ">=": operator.ge, "=": operator.eq}


def _condition(text: str) -> Callable[[AuditCell], bool]:
    """Read a condition on shifted test sets; one without a severity meets no condition on it."""
    sign = next((sign for sign in _COMPARISONS if sign in text), "")
    key, _, value = text.partition(sign or "=")
    if key in ("corruption", "shift", "domain") and sign == "=" and value:
        return lambda cell: cell.shift == value
    if key == "severity" and sign and value.isdigit():
        return lambda cell: cell.severity is not None and _COMPARISONS[sign](cell.severity, int(value))
    raise wrong("where", "corruption=NAME, shift=NAME, severity=K, severity<=K or severity>=K", repr(text))


def overall(found: Sequence[Check], *, strict: bool) -> Result:
    """Judge all checks: failed if one failed, else not judged if one could not be."""
    results = [check.result(strict=strict) for check in found]
    if "failed" in results:
        return "failed"
    return "not judged" if "not judged" in results or not results else "passed"
