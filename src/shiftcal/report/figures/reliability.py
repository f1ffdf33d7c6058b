"""Reliability diagrams, one column for each method (FGR paper, figure "visual"): clean above, under shift below."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shiftcal.records import Bins, RunRecord
from shiftcal.report.choose import pooled
from shiftcal.report.figures.canvas import PARTS, blank, bytes_of, shown
from shiftcal.report.figures.compared import methods_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_ACCURACY, _OVER, _UNDER, _COUNT = "#4878a8", "#e07a85", "#f0bf6c", "#b8c4ce"


@dataclass(frozen=True)
class Panel:
    """One diagram: whose it is, on which images, its bins over all seeds, the mean ECE over seeds, and a note on it."""

    label: str
    part: str
    bins: Bins
    ece: float
    note: str = ""


def reliability_data(records: Sequence[RunRecord]) -> list[list[Panel]]:
    """Collect the diagrams: a row for each part that all records have, in it a panel for each method."""
    methods = methods_of(records)
    parts = [part for part in PARTS.items() if all(getattr(r.evaluation.reliability, part[0]) for r in records)]
    return [[_panel(records, method, *part) for method in methods] for part in parts]


def _panel(records: Sequence[RunRecord], method: str, part: str, title: str) -> Panel:
    evaluations = [r.evaluation for r in records if r.method == method]
    bins = pooled([getattr(e.reliability, part) for e in evaluations])
    return Panel(method, title, bins, statistics.mean(getattr(e, part).ece for e in evaluations))


def draw_reliability(rows: Sequence[Sequence[Panel]], most: int = 8) -> Figure:
    """Draw rows of diagrams; rows of more than `most` are broken, the same panels of all rows staying together.

    Blue is what accuracy and confidence of a bin share. Red is confidence that accuracy does not bear out, yellow is
    accuracy beyond what is claimed. Below each diagram: how many samples the bins hold.
    """
    count = max(map(len, rows))
    blocks = -(-count // most)
    columns = -(-count // blocks)
    lines = [row[start : start + columns] for start in range(0, count, columns) for row in rows]
    figure = blank(2.9 * columns, 3.7 * len(lines))
    draw_panels(figure, lines, columns)
    return figure


def draw_panels(figure: Figure | SubFigure, lines: Sequence[Sequence[Panel]], columns: int) -> None:
    """Draw lines of panels into a figure or a part of one."""
    grid = figure.add_gridspec(2 * len(lines), columns, height_ratios=[4, 1] * len(lines))
    for row, line in enumerate(lines):
        for column, panel in enumerate(line):
            diagram = figure.add_subplot(grid[2 * row, column])
            counts = figure.add_subplot(grid[2 * row + 1, column], sharex=diagram)
            draw_diagram(diagram, counts, panel.bins)
            diagram.set_title(f"{shown(panel.label)} · {panel.part}\n{panel.note}ECE {panel.ece:.1%}", fontsize=10)
            if column == 0:
                diagram.set_ylabel("accuracy")
                counts.set_ylabel("share")
            counts.set_xlabel("confidence")


def draw_diagram(diagram: Axes, counts: Axes, bins: Bins) -> None:
    """Draw one diagram and the share of samples in each bin."""
    width = 1 / len(bins.count)
    filled = [m for m, n in enumerate(bins.count) if n]
    centres = [(m + 0.5) * width for m in filled]
    accuracy, confidence = ([values[m] for m in filled] for values in (bins.accuracy, bins.confidence))
    both = [min(pair) for pair in zip(accuracy, confidence, strict=True)]
    gaps = [abs(c - a) for a, c in zip(accuracy, confidence, strict=True)]
    colours = [_OVER if c > a else _UNDER for a, c in zip(accuracy, confidence, strict=True)]
    diagram.bar(centres, both, width * 0.94, color=_ACCURACY)
    diagram.bar(centres, gaps, width * 0.94, bottom=both, color=colours)
    diagram.plot([0, 1], [0, 1], "--", color="0.3", linewidth=1)
    diagram.set(xlim=(0, 1), ylim=(0, 1))
    diagram.tick_params(labelbottom=False)
    total = sum(bins.count)
    counts.bar(centres, [bins.count[m] / total for m in filled], width * 0.94, color=_COUNT)
    counts.set(ylim=(0, None))


def reliability_figure(records: list[RunRecord]) -> bytes:
    """Draw reliability diagrams as PNG, one column per method: in distribution above, all shifts together below."""
    return bytes_of(draw_reliability(reliability_data(records), most=100))
