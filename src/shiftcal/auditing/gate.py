"""A gate for CI: does an audit stay within limits? Never imports torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shiftcal._errors import wrong
from shiftcal.auditing.verdict import percent
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

    def result(self, *, strict: bool) -> Result:
        """Judge it; strictly, a limit inside the interval cannot be judged."""
        if self.value is None:
            return "not judged"
        if strict and self.low <= self.limit <= self.high:
            return "not judged"
        kept = self.value <= self.limit if self.upper else self.value >= self.limit
        return "passed" if kept else "failed"


def checks(record: AuditRecord, limits: Limits, where: Sequence[str] = ()) -> list[Check]:
    """Compare an audit with limits; `where` chooses shifted test sets, as in "corruption=fog" or "severity<=3"."""
    cells = [cell for cell in record.shifts if all(_matches(cell, condition) for condition in where)]
    name = limits.calibrator
    if name is not None and name not in record.clean.scaled:
        raise wrong("calibrator", f"one of {', '.join(record.clean.scaled) or 'none, none was fitted'}", repr(name))
    found = [
        _ece("clean ECE", limits.max_ece, [record.clean], name),
        _ece("shifted ECE", limits.max_shifted_ece, cells, name, record if not where else None),
        _ece("worst shifted ECE", limits.max_worst_ece, _worst(cells, name), name),
        _accuracy("clean accuracy", limits.min_accuracy, [record.clean], name),
        _accuracy("shifted accuracy", limits.min_shifted_accuracy, cells, name),
    ]
    return [check for check in found if check is not None]


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


def _matches(cell: AuditCell, condition: str) -> bool:
    for sign in ("<=", ">=", "="):
        key, found, value = condition.partition(sign)
        if found:
            break
    else:
        raise wrong("where", "corruption=NAME, shift=NAME, severity=K, severity<=K or severity>=K", repr(condition))
    if key in ("corruption", "shift", "domain") and sign == "=":
        return cell.shift == value
    if key == "severity" and value.isdigit():
        own = cell.severity or 0
        return {"=": own == int(value), "<=": own <= int(value), ">=": own >= int(value)}[sign]
    raise wrong("where", "corruption=NAME, shift=NAME, severity=K, severity<=K or severity>=K", repr(condition))


def overall(found: Sequence[Check], *, strict: bool) -> Result:
    """Judge all checks: failed if one failed, else not judged if one could not be."""
    results = [check.result(strict=strict) for check in found]
    if "failed" in results:
        return "failed"
    return "not judged" if "not judged" in results or not results else "passed"


def summary(record: AuditRecord, found: Sequence[Check], *, strict: bool) -> str:
    """Write the result in Markdown, for a pull request."""
    result = overall(found, strict=strict)
    lines = [f"### Calibration gate: {result}", "", f"{record.model.name} on {record.data.name}", ""]
    lines += ["| | limit | found | 95 % interval | result |", "|---|---:|---:|---:|---|"]
    for check in found:
        sign = "≤" if check.upper else "≥"
        value = "–" if check.value is None else percent(check.value)
        interval = "–" if check.value is None else f"{percent(check.low)} to {percent(check.high)}"
        word = check.result(strict=strict) + (f": {check.reason}" if check.reason else "")
        lines.append(f"| {check.name} | {sign} {percent(check.limit)} | {value} | {interval} | {word} |")
    return "\n".join([*lines, "", *record.verdict, ""])
