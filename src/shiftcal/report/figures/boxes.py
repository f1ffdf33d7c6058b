"""Accuracy and ECE by severity, a box over the shifts for each method (FGR paper, figure "AccECE")."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shiftcal._errors import wrong
from shiftcal.records import Cell, RunRecord
from shiftcal.report.figures.canvas import METRICS, blank, colours_of, legend_below
from shiftcal.report.figures.compared import methods_of
from shiftcal.report.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Box:
    """Quartiles, extremes and mean of a metric over the shifts of one severity, in %.

    Attributes:
        method: Whose.
        metric: "accuracy" or "ece".
        severity: 0 is the clean test set, which is one value.
        values: The value under each shift, the mean over seeds.
    """

    method: str
    metric: str
    severity: int
    values: tuple[float, ...]

    @property
    def quartiles(self) -> tuple[float, float, float]:
        """The quartiles, with linear interpolation between values."""
        if len(self.values) == 1:
            return (self.values[0],) * 3
        low, middle, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, middle, high

    @property
    def mean(self) -> float:
        """The mean over the shifts."""
        return statistics.mean(self.values)


def box_data(records: Sequence[RunRecord]) -> list[Box]:
    """Collect the boxes: metric by metric, severity by severity, methods in the order of METHODS."""
    methods = methods_of(records)
    severities = sorted({cell.severity or 1 for record in records for cell in record.evaluation.shifts})
    if not severities:
        raise wrong("records", "of runs that were evaluated under shift", "none with shifts")
    found = []
    for metric in METRICS:
        for severity in (0, *severities):
            for method in methods:
                values = _values([r for r in records if r.method == method], metric, severity)
                if values:
                    found.append(Box(method, metric, severity, values))
    return found


def _values(records: Sequence[RunRecord], metric: str, severity: int) -> tuple[float, ...]:
    by_shift: dict[str, list[float]] = {}
    for record in records:
        cells: Sequence[Cell] = [record.evaluation.clean]
        if severity:
            cells = [cell for cell in record.evaluation.shifts if (cell.severity or 1) == severity]
        for cell in cells:
            by_shift.setdefault(str(cell.shift), []).append(100 * getattr(cell, metric))
    return tuple(statistics.mean(values) for values in by_shift.values())


def draw_boxes(boxes: Sequence[Box]) -> Figure:
    """Draw accuracy above and ECE below, boxes in groups by severity, the mean above each box."""
    methods = list(dict.fromkeys(box.method for box in boxes))
    severities = list(dict.fromkeys(box.severity for box in boxes))
    width = max(9.0, 0.3 * len(methods) * len(severities) + 1)
    figure = blank(min(width, 24.0), 7.6)
    axes = figure.subplots(len(METRICS), 1, sharex=True)
    for axis, (metric, title) in zip(axes, METRICS.items(), strict=True):
        _draw_axis(axis, [box for box in boxes if box.metric == metric], methods, severities)
        axis.set_ylabel(title)
    names = ["clean" if severity == 0 else f"severity {severity}" for severity in severities]
    axes[-1].set_xticks(range(len(severities)), names)
    axes[-1].tick_params(axis="x", length=0)
    legend_below(figure, axes[0], columns=8)
    return figure


def _draw_axis(axis: Axes, boxes: Sequence[Box], methods: list[str], severities: list[int]) -> None:
    colours, step = colours_of(methods), 0.86 / len(methods)
    for place, method in enumerate(methods):
        own = [box for box in boxes if box.method == method]
        at = [severities.index(box.severity) + (place - (len(methods) - 1) / 2) * step for box in own]
        drawn = axis.bxp(
            [_statistics(box) for box in own],
            positions=at,
            widths=0.82 * step,
            patch_artist=True,
            showfliers=False,
            boxprops={"facecolor": colours[method], "edgecolor": colours[method], "alpha": 0.55},
            medianprops={"color": colours[method], "linewidth": 1.6},
            whiskerprops={"color": colours[method]},
            capprops={"color": colours[method]},
            manage_ticks=False,
        )
        drawn["boxes"][0].set_label(for_figure(method))
        for x, box in zip(at, own, strict=True):
            top = max(box.values)
            axis.annotate(
                f"{box.mean:.1f}", (x, top), (0, 3), textcoords="offset points", ha="center", fontsize=6.5, rotation=90
            )
    axis.margins(y=0.14)
    axis.set_ylim(bottom=max(0.0, axis.get_ylim()[0]))
    axis.set_xlim(-0.5, len(severities) - 0.5)
    for between in range(len(severities) - 1):
        axis.axvline(between + 0.5, color="0.85", linewidth=0.8)
    axis.grid(axis="y", alpha=0.3)


def _statistics(box: Box) -> dict[str, Any]:
    low, middle, high = box.quartiles
    return {"q1": low, "med": middle, "q3": high, "whislo": min(box.values), "whishi": max(box.values), "fliers": []}
