"""Sensitivity to one number of the config: γ, ρ, λ, start epoch, batch size (FGR paper, appendix and section 5)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shiftcal._errors import wrong
from shiftcal.records import RunRecord
from shiftcal.report.figures.canvas import METRICS, PARTS, blank, colours_of, legend_below, marker_of, shown
from shiftcal.report.figures.compared import check_only, differing_keys
from shiftcal.report.figures.config_keys import number_of, title_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """One method at one value of the key: a metric for each seed, as a fraction."""

    label: str
    value: float
    metrics: Mapping[tuple[str, str], tuple[float, ...]]

    def mean(self, part: str, metric: str) -> float:
        """The mean over seeds."""
        return statistics.mean(self.metrics[part, metric])

    def deviation(self, part: str, metric: str) -> float:
        """The standard deviation over seeds; 0 for one."""
        values = self.metrics[part, metric]
        return statistics.stdev(values) if len(values) > 1 else 0.0


def keys_in(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Find the numeric key in which the runs of each method differ, and the records that have several values of it."""
    found: dict[str, list[RunRecord]] = {}
    for label, own in _groups(records).items():
        keys = sorted(differing_keys(own))
        if len(keys) > 1:
            expected = "of runs of a method that differ in one numeric key"
            raise wrong("records", expected, f"{label} with several values of {', '.join(keys)}")
        for key in keys:
            found.setdefault(key, []).extend(own)
    if not found:
        raise wrong("records", "of runs of a method that differ in one numeric key", "runs that differ in seed alone")
    return found


def sensitivity_data(records: Sequence[RunRecord], key: str) -> list[Point]:
    """Collect the points of every method whose runs have several values of a key, in order of the values."""
    points: list[Point] = []
    for label, own in _groups(records).items():
        by_value: dict[float, list[RunRecord]] = {}
        for record in own:
            by_value.setdefault(number_of(record, key), []).append(record)
        if len(by_value) > 1:
            check_only(own, {key})
            points += [_point(label, value, by_value[value]) for value in sorted(by_value)]
    if not points:
        raise wrong("records", f"of runs of a method with several values of {key}", "one value for each method")
    return points


def _groups(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Group records by method and, where there are several, by data set and model."""
    names = {(r.config["data"].get("name"), _model(r)) for r in records}
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        more = f" · {record.config['data'].get('name')} · {_model(record)}" if len(names) > 1 else ""
        groups.setdefault(f"{record.method}{more}", []).append(record)
    return groups


def _model(record: RunRecord) -> Any:
    section = record.config.get("train")
    return section.get("model") if isinstance(section, dict) else None


def _point(label: str, value: float, records: Sequence[RunRecord]) -> Point:
    return Point(label, value, metrics_of(records))


def metrics_of(records: Sequence[RunRecord]) -> dict[tuple[str, str], tuple[float, ...]]:
    """Collect accuracy and ECE for each seed, clean and, where all records have it, under shift."""
    parts = [part for part in PARTS if all(getattr(r.evaluation, part) for r in records)]
    return {
        (part, metric): tuple(getattr(getattr(r.evaluation, part), metric) for r in records)
        for part in parts
        for metric in METRICS
    }


def draw_sensitivity(points: Sequence[Point], key: str) -> Figure:
    """Draw accuracy and ECE against the key, clean and under shift, with the deviation over seeds."""
    labels = list(dict.fromkeys(point.label for point in points))
    parts = [part for part in PARTS if all((part, "ece") in point.metrics for point in points)]
    figure, colours = blank(4.3 * len(METRICS), 3.1 * len(parts) + 0.5), line_colours(labels)
    axes = figure.subplots(len(parts), len(METRICS), sharex=True, squeeze=False)
    for row, part in zip(axes, parts, strict=True):
        for axis, (metric, title) in zip(row, METRICS.items(), strict=True):
            for place, label in enumerate(labels):
                own = [point for point in points if point.label == label]
                axis.errorbar(
                    [point.value for point in own],
                    [100 * point.mean(part, metric) for point in own],
                    [100 * point.deviation(part, metric) for point in own],
                    fmt=f"{marker_of(place)}-",
                    color=colours[label],
                    label=shown(label),
                    capsize=3,
                )
            axis.set_title(PARTS[part], fontsize=10)
            axis.set_ylabel(title)
            axis.grid(alpha=0.3)
    values = sorted({point.value for point in points})
    for axis in axes.flatten():
        _scale(axis, values)
    for axis in axes[-1]:
        axis.set_xlabel(title_of(key))
    legend_below(figure, axes[0][0], columns=4)
    return figure


def line_colours(labels: Sequence[str]) -> dict[str, str]:
    """Colour lines by their method; where a method comes twice, by their place."""
    methods = [label.split(" · ")[0] for label in labels]
    if len(set(methods)) < len(methods):
        methods = [f"line {place}" for place in range(len(labels))]
    return dict(zip(labels, colours_of(methods).values(), strict=True))


def _scale(axis: Any, values: Sequence[float]) -> None:
    """Mark the values that were run; where they span more than a factor of eight, by their logarithm."""
    if values[0] > 0 and values[-1] / values[0] > 8:
        axis.set_xscale("log", base=2)
        axis.xaxis.minorticks_off()
    axis.set_xticks(values, [f"{value:g}" for value in values])
