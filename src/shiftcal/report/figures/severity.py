"""ECE by severity, one line per method: first the mean over all shifts, then each shift. Severity 0 is clean."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shiftcal.records import Evaluation, RunRecord
from shiftcal.report.figures.canvas import blank, bytes_of, colours_of, shown
from shiftcal.report.figures.compared import methods_of
from shiftcal.report.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Curve:
    """The ECE of one method under one shift (None: the mean over all), a list by severity for each seed."""

    method: str
    shift: str | None
    by_seed: tuple[tuple[float, ...], ...]

    @property
    def mean(self) -> list[float]:
        """The mean over seeds, by severity."""
        return [statistics.mean(values) for values in zip(*self.by_seed, strict=True)]


def severity_data(records: Sequence[RunRecord]) -> list[Curve]:
    """Collect the curves: the mean over shifts first, then each shift, all methods of one together."""
    shifts = list(dict.fromkeys(str(cell.shift) for record in records for cell in record.evaluation.shifts))
    methods = methods_of(records)
    found = []
    for shift in (None, *shifts):
        for method in methods:
            evaluations = [r.evaluation for r in records if r.method == method]
            by_seed = tuple(tuple(curve_of(e, shift)) for e in evaluations if _has(e, shift))
            found.append(Curve(method, shift, by_seed))
    return found


def draw_severity(curves: Sequence[Curve]) -> Figure:
    """Draw an axis for each shift; with few methods, the range over seeds is shaded."""
    shifts, methods = (list(dict.fromkeys(getattr(c, key) for c in curves)) for key in ("shift", "method"))
    columns = min(4, len(shifts))
    rows = -(-len(shifts) // columns)
    figure, colours = blank(3.1 * columns, 2.7 * rows), colours_of(methods)
    axes = figure.subplots(rows, columns, sharex=True, squeeze=False).flatten()
    for axis, shift in zip(axes, shifts, strict=False):
        for curve in (c for c in curves if c.shift == shift):
            _draw_curve(axis, curve, colours[curve.method], shaded=len(methods) <= 3)
        axis.set_title("mean over shifts" if shift is None else shown(shift), fontsize=10)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    for axis in axes[len(shifts) :]:
        axis.set_visible(False)
    if len(methods) <= 4:
        axes[0].legend(frameon=False)
    else:  # more would hide the curves
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.supxlabel("severity (0: clean)")
    figure.supylabel("ECE, %")
    return figure


def _draw_curve(axis: Axes, curve: Curve, colour: str, *, shaded: bool) -> None:
    severity = range(len(curve.mean))
    percent = [100 * value for value in curve.mean]
    axis.plot(severity, percent, "o-", color=colour, label=for_figure(curve.method))
    if len(curve.by_seed) > 1 and shaded:
        low, high = ([100 * f(v) for v in zip(*curve.by_seed, strict=True)] for f in (min, max))
        axis.fill_between(severity, low, high, color=colour, alpha=0.15)


def curve_of(evaluation: Evaluation, shift: str | None) -> list[float]:
    """List ECE by severity, from the clean set on; the mean over shifts where none is named."""
    cells = [cell for cell in evaluation.shifts if shift in (None, cell.shift)]
    severities = sorted({cell.severity or 0 for cell in cells})
    means = [statistics.mean(cell.ece for cell in cells if (cell.severity or 0) == s) for s in severities]
    return [evaluation.clean.ece, *means]


def _has(evaluation: Evaluation, shift: str | None) -> bool:
    """Tell whether a run was measured under a shift: of domains held out in turn, each has its own."""
    return shift is None or any(cell.shift == shift for cell in evaluation.shifts)


def severity_figure(records: list[RunRecord]) -> bytes:
    """Draw ECE by severity as PNG, one line per method: first the mean over all shifts, then each."""
    return bytes_of(draw_severity(severity_data(records)))
