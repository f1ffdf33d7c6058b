"""The comparison of runs in plain words: what was shown, and how sure that is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from shiftcal.records import RunRecord
from shiftcal.report.table import CLEAN, COLUMNS, SHIFTED, Row, difference_of, learned, parts_of, rows_of

_ACCURACY, _ECE = COLUMNS[:2]


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
        return [self._lowest(part) for part in reversed(self.parts)] + self._price() + self._not_counted()

    def numbers(self) -> list[Number]:
        """Return the two numbers that matter: the ECE clean and under shift of the best method under shift."""
        best = self._ranked(self.parts[-1])[0]
        base = next((row for row in self.rows if row.method == self.baseline and row is not best), None)
        return [
            Number(
                f"{best.text(part, _ECE)} %",
                f"ECE {'under shift' if part == SHIFTED else 'clean'}, {best.method}",
                f"{base.method}: {base.text(part, _ECE)} %" if base and base.cells[part, "ece"] else "",
            )
            for part in self.parts
        ]

    def telling(self, count: int) -> list[str]:
        """Choose so many methods at most, in order: the baseline, and those of the lowest calibration error."""
        base = next((row for row in self.rows if row.method == self.baseline), self.rows[0])
        ranked = dict.fromkeys(row.method for row in [base, *self._ranked(self.parts[-1]), *self.rows])
        chosen = list(ranked)[:count]
        return [row.method for row in self.rows if row.method in chosen]

    def _ranked(self, part: str) -> list[Row]:
        """Order the methods that have learned something by their mean ECE, the lowest first."""
        return sorted(learned(self.rows), key=lambda row: statistics.fmean(row.cells[part, "ece"]))

    def _not_counted(self) -> list[str]:
        counted = learned(self.rows)
        return [
            f"Not counted: {row.method}, which is right {row.text(self.parts[0], _ACCURACY)} % of the time. "
            "Where accuracy and confidence are both small, their difference cannot be large."
            for row in self.rows
            if row not in counted
        ]

    def _lowest(self, part: str) -> str:
        first, *others = self._ranked(part)
        start = f"{where(part)}, {first.method} has the lowest calibration error: {_error(first, part)}"
        if not others:
            return f"{start}."
        start += f"; the highest is that of {others[-1].method}: {_error(others[-1], part)}."
        found = {row.method: difference_of(first, row, part, "ece") for row in others}
        unknown = [name for name, one in found.items() if one is None or one.half_width is None]
        tied = [name for name, one in found.items() if name not in unknown and one is not None and not one.shown]
        if len(unknown) == len(found):
            return f"{start} {first.method} shares no two seeds with another: how much of this is chance is not known."
        if not unknown and not tied:
            return f"{start} All others are higher, by 95 % intervals over seeds."
        near = f" Chance may explain the difference to {_listed(tied)}." if tied else ""
        few = f" With {_listed(unknown)} it shares fewer than two seeds, which shows nothing." if unknown else ""
        return f"{start}{near}{few}"

    def _price(self) -> list[str]:
        """Say what the best under shift costs in clean accuracy, against the baseline."""
        base = next((row for row in self.rows if row.method == self.baseline), None)
        best = self._ranked(self.parts[-1])[0]
        if len(self.parts) < 2 or base is None or best is base:
            return []
        found = difference_of(best, base, self.parts[0], "accuracy")
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
    return f"{where(part)}, {row.method} is right {row.text(part, _ACCURACY)} % of the time; {_error(row, part)}."


def _error(row: Row, part: str) -> str:
    return f"ECE {row.text(part, _ECE)} %"
