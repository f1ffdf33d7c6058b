"""Figures for papers and pages, as PNG, from records alone."""

from __future__ import annotations

import io
import statistics
from typing import TYPE_CHECKING, Any

from shiftcal.methods import METHODS
from shiftcal.records import Bins, Evaluation, RunRecord
from shiftcal.report.choose import pooled
from shiftcal.report.table import rows_of
from shiftcal.report.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACCURACY, _OVER, _UNDER, _COUNT = "#4878a8", "#e07a85", "#f0bf6c", "#b8c4ce"
# A method has the same colour in every figure: its place in METHODS.
_LINES: tuple[str, ...] = (
    "#1b1b1e",
    "#8d6e63",
    "#c0a000",
    "#c44e52",
    "#b07aa1",
    "#f28e2b",
    "#9c755f",
    "#bab0ac",
    "#2e7d6b",
    "#76b7b2",
    "#59a14f",
    "#86bc86",
)
_LINES += (
    "#4e79a7",
    "#a0cbe8",
    "#7a5195",
    "#d37295",
    "#fabfd2",
    "#1f9e89",
    "#35b779",
    "#a3a500",
    "#e15759",
    "#3b5dc9",
    "#6c8cff",
    "#8b4ac7",
    "#c79bf2",
    "#5c6b73",
    "#ff7f0e",
    "#d62728",
    "#e377c2",
    "#17becf",
    "#006d77",
    "#79706e",
)


def reliability_figure(records: list[RunRecord]) -> bytes:
    """Draw reliability diagrams, one column per method: in distribution above, all shifts together below.

    Blue is what accuracy and confidence of a bin share. Red is confidence that accuracy does not bear out, yellow is
    accuracy beyond what is claimed. Below each diagram: how many samples the bins hold.
    """
    methods = [row.method for row in rows_of(records)]
    parts = [("clean", "In distribution"), ("shifted", "Under shift")]
    parts = [p for p in parts if all(getattr(r.evaluation.reliability, p[0]) for r in records)]
    figure = _figure(2.9 * len(methods), 3.7 * len(parts))
    grid = figure.add_gridspec(2 * len(parts), len(methods), height_ratios=[4, 1] * len(parts))
    for column, method in enumerate(methods):
        evaluations = [r.evaluation for r in records if r.method == method]
        for row, (part, title) in enumerate(parts):
            bins = pooled([getattr(e.reliability, part) for e in evaluations])
            ece = statistics.mean(getattr(e, part).ece for e in evaluations)
            diagram = figure.add_subplot(grid[2 * row, column])
            counts = figure.add_subplot(grid[2 * row + 1, column], sharex=diagram)
            _draw_diagram(diagram, counts, bins)
            diagram.set_title(f"{for_figure(method)} · {title.lower()}\nECE {ece:.1%}", fontsize=10)
            if column == 0:
                diagram.set_ylabel("accuracy")
                counts.set_ylabel("share")
            counts.set_xlabel("confidence")
    return _png(figure)


def _draw_diagram(diagram: Axes, counts: Axes, bins: Bins) -> None:
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


def severity_figure(records: list[RunRecord]) -> bytes:
    """Draw ECE by severity, one line per method: first the mean over all shifts, then each. Severity 0 is clean."""
    shifts = list(dict.fromkeys(str(cell.shift) for record in records for cell in record.evaluation.shifts))
    columns = min(4, len(shifts) + 1)
    rows = -(-(len(shifts) + 1) // columns)
    figure = _figure(3.1 * columns, 2.7 * rows)
    axes = figure.subplots(rows, columns, sharex=True, squeeze=False).flatten()
    methods = [row.method for row in rows_of(records)]
    for axis, shift in zip(axes, [None, *shifts], strict=False):
        for method in methods:
            evaluations = [r.evaluation for r in records if r.method == method]
            curves = [[100 * v for v in _curve(e, shift)] for e in evaluations if _has(e, shift)]
            by_severity = list(zip(*curves, strict=True))
            severity, colour = range(len(by_severity)), colour_of(method)
            axis.plot(severity, [statistics.mean(v) for v in by_severity], "o-", color=colour, label=for_figure(method))
            if len(curves) > 1 and len(methods) <= 3:
                low, high = [min(v) for v in by_severity], [max(v) for v in by_severity]
                axis.fill_between(severity, low, high, color=colour, alpha=0.15)
        axis.set_title("mean over shifts" if shift is None else for_figure(shift.replace("_", " ")), fontsize=10)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    for axis in axes[len(shifts) + 1 :]:
        axis.set_visible(False)
    if len(methods) <= 4:
        axes[0].legend(frameon=False)
    else:  # more would hide the curves
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.supxlabel("severity (0: clean)")
    figure.supylabel("ECE, %")
    return _png(figure)


def contact_sheet(labels: list[str], rows: list[list[Any]], columns: list[str]) -> bytes:
    """Lay images of one size out in rows with a label each, under a heading for each column."""
    import numpy as np

    height, width = rows[0][0].shape[:2]
    gap = max(1, height // 16)
    sheet = np.full((len(rows) * (height + gap) - gap, len(columns) * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            sheet[i * (height + gap) :, j * (width + gap) :][:height, :width] = image
    figure = _figure(1.1 * len(columns) + 2.2, 1.1 * len(rows) * height / width + 0.4)
    axis = figure.add_subplot()
    axis.imshow(sheet, interpolation="nearest")
    axis.set_xticks([j * (width + gap) + width / 2 for j in range(len(columns))], columns)
    axis.set_yticks([i * (height + gap) + height / 2 for i in range(len(rows))], labels)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    return _png(figure)


def colour_of(method: str) -> str:
    """Return a method's colour; unknown methods share the last one."""
    names = list(METHODS)
    return _LINES[names.index(method) if method in names[: len(_LINES)] else -1]


def _curve(evaluation: Evaluation, shift: str | None) -> list[float]:
    """List ECE by severity, from the clean set on; the mean over shifts where none is named."""
    cells = [cell for cell in evaluation.shifts if shift in (None, cell.shift)]
    severities = sorted({cell.severity or 0 for cell in cells})
    means = [statistics.mean(cell.ece for cell in cells if (cell.severity or 0) == s) for s in severities]
    return [evaluation.clean.ece, *means]


def _has(evaluation: Evaluation, shift: str | None) -> bool:
    """Tell whether a run was measured under a shift: of domains held out in turn, each has its own."""
    return shift is None or any(cell.shift == shift for cell in evaluation.shifts)


def _figure(width: float, height: float) -> Figure:
    # Not pyplot: no global state, no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
