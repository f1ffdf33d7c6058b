"""Training curves: loss and accuracy on training images, and what was measured after each epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shiftcal._errors import wrong
from shiftcal.analysis.conflicts import Curves, measured_over
from shiftcal.records import RunRecord
from shiftcal.report.figures.canvas import blank, colours_of, legend_below, shown
from shiftcal.report.figures.compared import methods_of
from shiftcal.report.figures.conflicts import STYLES, label_epochs, mean_curve, name_styles, plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class TrainingLine:
    """One method's curves, means over its seeds: loss and accuracy in training, and metrics by part and name."""

    label: str
    loss: Curves
    accuracy: Curves
    measured: Mapping[str, Mapping[str, Curves]]


def training_data(records: Sequence[RunRecord]) -> list[TrainingLine]:
    """Average the histories of each method's seeds."""
    trained = [record for record in records if record.history]
    if not trained:
        raise wrong("records", "of runs that were trained, with a history", "none with epochs")
    return [_line(method, [r for r in trained if r.method == method]) for method in methods_of(trained)]


def _line(label: str, records: Sequence[RunRecord]) -> TrainingLine:
    def mean(name: str) -> Curves:
        epochs = [tuple(entry.epoch for entry in record.history) for record in records]
        values = [tuple(float(getattr(entry, name)) for entry in record.history) for record in records]
        return mean_curve([Curves(e, v) for e, v in zip(epochs, values, strict=True)])

    measured = [measured_over(record) for record in records]
    shared = {
        part: {name: mean_curve([m[part][name] for m in measured]) for name in measured[0][part]}
        for part in measured[0]
        if all(part in m and measured[0][part].keys() <= m[part].keys() for m in measured)
    }
    return TrainingLine(label, mean("loss"), mean("accuracy"), shared)


def draw_training(lines: Sequence[TrainingLine]) -> Figure:
    """Draw training loss and accuracy on the left, accuracy and ECE after each epoch on the right."""
    figure, colours = blank(10.5, 6.2), colours_of([line.label for line in lines])
    axes = figure.subplots(2, 2, sharex=True)
    for line in lines:
        colour = colours[line.label]
        plot(axes[0][0], line.loss, colour, shown(line.label))
        plot(axes[1][0], line.accuracy, colour, factor=100)
        for part, metrics in line.measured.items():
            for axis, metric in ((axes[1][1], "accuracy"), (axes[0][1], "ece")):
                if metric in metrics:
                    plot(axis, metrics[metric], colour, style=STYLES[part], factor=100)
    of = name_styles(axes[0][0], [part for line in lines for part in line.measured])
    titles = (("loss in training", f"ECE{of}, %"), ("accuracy in training, %", f"accuracy{of}, %"))
    for row, names in zip(axes, titles, strict=True):
        for axis, title in zip(row, names, strict=True):
            axis.set_ylabel(title)
            axis.grid(alpha=0.3)
    for axis in axes[1]:
        label_epochs(axis)
    legend_below(figure, axes[0][0], columns=7)
    return figure
