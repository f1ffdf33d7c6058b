"""Conflict rate, accuracy and ECE over epochs (FGR paper, figure "Evolution of Gradient Conflict Ratio")."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shiftcal._errors import wrong
from shiftcal.analysis.conflicts import Curves, conflict_history
from shiftcal.records import RunRecord
from shiftcal.report.figures.canvas import blank, colours_of, legend_below, shown
from shiftcal.report.figures.compared import methods_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"clean": "clean test", "shifted": "shifted test", "validation": "validation"}
STYLES = {"clean": "-", "shifted": "--", "validation": "-"}


@dataclass(frozen=True)
class ConflictLine:
    """One method's curves, means over its seeds.

    Attributes:
        label: Whose.
        rate: The conflict rate.
        cosine: The mean cosine.
        measured: Accuracy and ECE by the images they were measured on, see `analysis.conflicts.ConflictHistory`.
        start: The first epoch with a constraint.
        decays: Epochs at whose start the learning rate fell steeply.
    """

    label: str
    rate: Curves
    cosine: Curves
    measured: Mapping[str, Mapping[str, Curves]]
    start: int | None
    decays: tuple[int, ...]


def conflict_data(records: Sequence[RunRecord]) -> list[ConflictLine]:
    """Average the histories of each method's seeds; methods without a constraint are left out."""
    by_label = {method: [r for r in records if r.method == method] for method in methods_of(records)}
    lines = [_line(label, own) for label, own in by_label.items()]
    found = [line for line in lines if line.rate.epochs]
    if not found:
        expected = "of runs with a constraint, such as fgr, whose history tells the conflict rate"
        raise wrong("records", expected, f"runs of {', '.join(by_label)}")
    return found


def _line(label: str, records: Sequence[RunRecord]) -> ConflictLine:
    histories = [conflict_history(record) for record in records]
    parts = [part for part in histories[0].measured if all(part in h.measured for h in histories)]
    measured = {part: _all_means([h.measured[part] for h in histories]) for part in parts}
    rate, cosine = mean_curve([h.rate for h in histories]), mean_curve([h.cosine for h in histories])
    return ConflictLine(label, rate, cosine, measured, histories[0].start, histories[0].decays)


def _all_means(curves: Sequence[Mapping[str, Curves]]) -> dict[str, Curves]:
    return {name: mean_curve([one[name] for one in curves]) for name in curves[0] if all(name in one for one in curves)}


def mean_curve(curves: Sequence[Curves]) -> Curves:
    """Average curves over the epochs that all have."""
    tables = [dict(zip(curve.epochs, curve.values, strict=True)) for curve in curves]
    epochs = [epoch for epoch in tables[0] if all(epoch in table for table in tables)]
    return Curves(tuple(epochs), tuple(statistics.mean(table[epoch] for table in tables) for epoch in epochs))


def draw_conflicts(lines: Sequence[ConflictLine]) -> Figure:
    """Draw four axes below each other: conflict rate, cosine, accuracy and ECE, from shortly before the first."""
    figure, colours = blank(7.5, 8.6), colours_of([line.label for line in lines])
    axes, first = figure.subplots(4, 1, sharex=True), _first_epoch(lines)
    for line in lines:
        colour = colours[line.label]
        plot(axes[0], line.rate, colour, shown(line.label), factor=100)
        plot(axes[1], line.cosine, colour)
        for part, metrics in line.measured.items():
            for axis, metric in ((axes[2], "accuracy"), (axes[3], "ece")):
                if metric in metrics:
                    plot(axis, since(metrics[metric], first), colour, style=STYLES[part], factor=100)
    of = name_styles(axes[0], [part for line in lines for part in line.measured])
    titles = ("conflicts, % of steps", "mean cosine", f"accuracy{of}, %", f"ECE{of}, %")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_ylabel(title)
        axis.grid(alpha=0.3)
    _mark(axes, lines)
    axes[1].axhline(0, color="0.4", linewidth=0.8)
    label_epochs(axes[-1])
    legend_below(figure, axes[0], columns=5)
    return figure


def label_epochs(axis: Axes) -> None:
    """Name the axis of epochs, whose marks are whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_xlabel("epoch")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))


def name_styles(axis: Axes, parts: Sequence[str]) -> str:
    """Tell in the legend what a line's style means; of one part alone, return its name for the axes instead."""
    different = list(dict.fromkeys(parts))
    if len(different) == 1:
        return f", {NAMES[different[0]]}"
    for part in different:
        axis.plot([], [], STYLES[part], color="0.4", label=NAMES[part])
    return ""


def _first_epoch(lines: Sequence[ConflictLine]) -> float:
    """Return where the figure starts: a fifth of the constrained phase before it."""
    start = min(line.rate.epochs[0] for line in lines)
    return start - (max(line.rate.epochs[-1] for line in lines) - start) / 5


def since(curve: Curves, first: float) -> Curves:
    """Leave out what was before an epoch."""
    kept = [pair for pair in zip(curve.epochs, curve.values, strict=True) if pair[0] >= first]
    return Curves(tuple(epoch for epoch, _ in kept), tuple(value for _, value in kept))


def plot(
    axis: Axes, curve: Curves, colour: str, label: str | None = None, *, style: str = "-", factor: float = 1
) -> None:
    """Draw a curve."""
    marker = "o" if len(curve.epochs) <= 20 else None
    values = [factor * value for value in curve.values]
    axis.plot(curve.epochs, values, style, color=colour, label=label, marker=marker, markersize=3, linewidth=1.5)


def _mark(axes: Sequence[Axes], lines: Sequence[ConflictLine]) -> None:
    """Draw where the constraint starts, dotted, and where the learning rate falls, dashed."""
    starts = {line.start for line in lines if line.start is not None and line.start > 1}
    for axis in axes:
        for start in starts:
            axis.axvline(start, color="0.5", linestyle=":", linewidth=1)
        for decay in {epoch for line in lines for epoch in line.decays}:
            axis.axvline(decay, color="0.7", linestyle="--", linewidth=1)
