"""Reliability diagrams before and after temperature scaling, clean and under shift."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shiftcal._errors import unknown, wrong
from shiftcal.records import Bins, Cell, Measured, RunRecord
from shiftcal.report.choose import pooled
from shiftcal.report.figures.compared import methods_of
from shiftcal.report.figures.reliability import Panel, draw_reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def temperature_data(records: Sequence[RunRecord], temperature: str = "clean") -> list[list[Panel]]:
    """Collect four rows of panels, one for each method: clean before and after, shifted before and after.

    Args:
        records: Records with bins of each test set, also after the temperature.
        temperature: Which one, "clean" or "shift_aware".
    """
    methods = methods_of(records)
    known = set.intersection(*(record.evaluation.scaled_by for record in records))
    if temperature not in known:
        raise unknown("temperature", temperature, known)
    shifted = ("under shift",) if all(record.evaluation.shifts for record in records) else ()
    lines = [(part, scaled) for part in ("in distribution", *shifted) for scaled in (None, temperature)]
    return [[_panel(records, method, *line) for method in methods] for line in lines]


def _panel(records: Sequence[RunRecord], method: str, part: str, scaled: str | None) -> Panel:
    own = [record.evaluation for record in records if record.method == method]
    cells: list[Cell] = [cell for e in own for cell in ((e.clean,) if part == "in distribution" else e.shifts)]
    measured: list[Measured] = [cell.scaled[scaled] if scaled else cell for cell in cells]
    bins: list[Bins] = [m.bins for m in measured if m.bins is not None]
    eces = [m.ece for m in measured if m.ece is not None]
    if len(bins) < len(measured) or len(eces) < len(measured):
        expected = "with the bins of each test set before and after temperature scaling (`shiftcal eval` adds them)"
        raise wrong("records", expected, f"{method} without them")
    note = {None: "as trained, ", "clean": "with T, "}.get(scaled, "with shift-aware T, ")
    return Panel(method, part, pooled(bins), statistics.mean(eces), note)


def draw_temperature(rows: Sequence[Sequence[Panel]]) -> Figure:
    """Draw a column for each method."""
    return draw_reliability(rows, most=6)
