"""The comparison of runs in plain words: what was shown, and how sure that is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from shiftcal.records import RunRecord
from shiftcal.report.intervals import Difference, difference
from shiftcal.report.table import CLEAN, SHIFTED, Row, parts_of, rows_of


@dataclass(frozen=True)
class Number:
    """A number of the first screen: the value, what it is, and what it is to be compared with."""

    value: str
    title: str
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """Methods to be compared, and the one that the others are measured by."""

    rows: Sequence[Row]
    parts: Sequence[str]
    baseline: str = "ce"

    def sentences(self) -> list[str]:
        """Say which method has the lowest calibration error, under shift and clean, and whether that is shown."""
        if len(self.rows) == 1:
            return [_alone(self.rows[0], part) for part in self.parts]
        return [self._lowest(part) for part in reversed(self.parts)] + self._price()

    def numbers(self) -> list[Number]:
        """Return the two numbers that matter: the ECE clean and under shift of the best method under shift."""
        best = ranked(self.rows, self.parts[-1])[0]
        base = next((row for row in self.rows if row.method == self.baseline and row is not best), None)
        return [
            Number(
                f"{text_of(best.cells[part, 'ece'])} %",
                f"ECE {'under shift' if part == SHIFTED else 'clean'}, {best.method}",
                f"{base.method}: {text_of(base.cells[part, 'ece'])} %" if base and base.cells[part, "ece"] else "",
            )
            for part in self.parts
        ]

    def _lowest(self, part: str) -> str:
        first, *others = ranked(self.rows, part)
        start = f"{where(part)}, {first.method} has the lowest calibration error: {_error(first, part)}"
        if not others:
            return f"{start}."
        start += f"; the highest is that of {others[-1].method}: {_error(others[-1], part)}."
        found = {row.method: self._difference(first, row, part, "ece") for row in others}
        unknown = [name for name, one in found.items() if one is None or one.half_width is None]
        tied = [name for name, one in found.items() if name not in unknown and one is not None and not one.shown]
        if len(unknown) == len(found):
            return f"{start} {first.method} shares no two seeds with another: how much of this is chance is not known."
        if not unknown and not tied:
            return f"{start} All others are higher, by 95 % intervals over seeds."
        near = f" Chance may explain the difference to {_listed(tied)}." if tied else ""
        few = f" With {_listed(unknown)} it shares fewer than two seeds, which shows nothing." if unknown else ""
        return f"{start}{near}{few}"

    def _difference(self, row: Row, other: Row, part: str, key: str) -> Difference | None:
        """Compare two methods on the seeds that both have; None where there are none."""
        mine, theirs = (dict(zip(r.seeds, r.cells[part, key], strict=False)) for r in (row, other))
        both = sorted(mine.keys() & theirs.keys())
        return difference([mine[s] for s in both], [theirs[s] for s in both]) if both else None

    def _price(self) -> list[str]:
        """Say what the best under shift costs in clean accuracy, against the baseline."""
        base = next((row for row in self.rows if row.method == self.baseline), None)
        best = ranked(self.rows, self.parts[-1])[0]
        if len(self.parts) < 2 or base is None or best is base:
            return []
        found = self._difference(best, base, self.parts[0], "accuracy")
        if found is None:
            return []
        way = "more" if found.mean > 0 else "less"
        start = f"Clean, {best.method} is right {100 * abs(found.mean):.1f} points {way} often than {base.method}"
        if found.half_width is None:
            return [f"{start} (one seed)."]
        sure = "" if found.shown else ": within chance"
        return [f"{start} (95 % interval over seeds: ± {100 * found.half_width:.1f}){sure}."]


def comparison_of(records: list[RunRecord]) -> Comparison:
    """Compare runs that one table may show."""
    rows = rows_of(records)
    parts = [part for part in parts_of(rows) if part == SHIFTED or part.startswith(CLEAN)]
    return Comparison(rows, parts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"


def where(part: str) -> str:
    """Name a part of the table at the beginning of a sentence."""
    return "Under shift" if part == SHIFTED else part


def _alone(row: Row, part: str) -> str:
    right = text_of(row.cells[part, "accuracy"], 1)
    return f"{where(part)}, {row.method} is right {right} % of the time; {_error(row, part)}."


def _error(row: Row, part: str) -> str:
    return f"ECE {text_of(row.cells[part, 'ece'])} %"


def text_of(values: Sequence[float], decimals: int = 2) -> str:
    """Write the mean of fractions in %, with the standard deviation over several seeds.

    Example:
        >>> text_of([0.01, 0.02])
        '1.50 ± 0.71'
    """
    shown = [100 * value for value in values]
    deviation = f" ± {statistics.stdev(shown):.{decimals}f}" if len(shown) > 1 else ""
    return f"{statistics.fmean(shown):.{decimals}f}{deviation}"


def ranked(rows: Sequence[Row], part: str) -> list[Row]:
    """Order rows by their mean ECE, the lowest first."""
    return sorted(rows, key=lambda row: statistics.fmean(row.cells[part, "ece"]))
