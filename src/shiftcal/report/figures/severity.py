"""ECE by severity, one line per method: first the mean over all shifts, then each shift. Severity 0 is clean.

Shifts that have no severities, such as domains held out in turn, are bars instead.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shiftcal.records import Evaluation, RunRecord
from shiftcal.report.figures.canvas import blank, bytes_of, colours_of, legend_below, shown
from shiftcal.report.figures.compared import methods_of
from shiftcal.report.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDEST = 40.0  # inches
_RANGE: dict[str, Any] = {"color": "#333333", "lw": 1.4}
_SEEN: dict[str, Any] = {"color": "#333333", "lw": 2.0, "ls": (0, (1, 0.8))}


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
            own = [r for r in records if r.method == method and _has(r.evaluation, shift)]
            seeds = dict.fromkeys(record.seed for record in own)
            found.append(Curve(method, shift, tuple(_of_seed(own, seed, shift) for seed in seeds)))
    return found


def _of_seed(records: Sequence[RunRecord], seed: int, shift: str | None) -> tuple[float, ...]:
    """Average the curves of one seed: of domains held out in turn, each has a run of its own."""
    curves = [curve_of(record.evaluation, shift) for record in records if record.seed == seed]
    return tuple(statistics.mean(values) for values in zip(*curves, strict=True))


def draw_severity(curves: Sequence[Curve]) -> Figure:
    """Draw an axis for each shift, with few methods with the range over seeds; bars where nothing has severities."""
    if all(len(values) == 2 for curve in curves for values in curve.by_seed):
        return _draw_bars(curves)
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
    for axis in axes[len(shifts) - columns : len(shifts)]:  # the lowest of each column, whose axis tells the severity
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.tick_params(labelbottom=True)
    for axis in axes[len(shifts) :]:
        axis.set_visible(False)
    if len(methods) <= 4:
        axes[0].legend(frameon=False)
    else:  # more would hide the curves
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.supxlabel("severity (0: clean)")
    figure.supylabel("ECE, %")
    return figure


def _draw_bars(curves: Sequence[Curve]) -> Figure:
    """Draw a group of bars for each shift, a bar for each method, and what it had in distribution as a line across."""
    shifts, methods = (list(dict.fromkeys(getattr(c, key) for c in curves)) for key in ("shift", "method"))
    width = 0.86 / len(methods)
    inches = 1.4 + 0.32 * len(shifts) * (len(methods) + 1)
    figure, colours = blank(min(max(inches, 5.0), _WIDEST), 3.8), colours_of(methods)
    axis = figure.subplots()
    for curve in (c for c in curves if c.by_seed):
        place = shifts.index(curve.shift) + (methods.index(curve.method) - (len(methods) - 1) / 2) * width
        label = for_figure(curve.method) if curve.shift is None else None
        _draw_bar(axis, curve, place, width, colours[curve.method], label)
    if any(len(curve.by_seed) > 1 for curve in curves):
        axis.plot([], [], **_RANGE, label="range over seeds")
    axis.plot([], [], **_SEEN, label="in distribution")
    names = ["mean over shifts" if shift is None else shown(shift) for shift in shifts]
    axis.set_xticks(range(len(shifts)), names)
    axis.set_ylabel("ECE, %")
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    legend_below(figure, axis)
    return figure


def _draw_bar(axis: Axes, curve: Curve, place: float, width: float, colour: str, label: str | None) -> None:
    from matplotlib.patheffects import withStroke

    edge = [withStroke(linewidth=3.6, foreground="white")]  # on dark bars too
    seen, shifted = (100 * value for value in curve.mean)
    by_seed = [100 * value for _, value in curve.by_seed]
    axis.bar(place, shifted, 0.9 * width, color=colour, label=label)
    axis.plot([place, place], [min(by_seed), max(by_seed)], **_RANGE, path_effects=edge)
    axis.annotate(f"{shifted:.1f}", (place, max(by_seed)), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    axis.plot([place - 0.42 * width, place + 0.42 * width], [seen, seen], **_SEEN, path_effects=edge)


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
