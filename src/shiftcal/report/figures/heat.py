"""The joint sensitivity to the share ρ and the quality λ as heat maps (FGR paper, figures "joint sensitivity")."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shiftcal._errors import wrong
from shiftcal.records import RunRecord
from shiftcal.report.figures.canvas import METRICS, PARTS, blank, shown
from shiftcal.report.figures.compared import check_only
from shiftcal.report.figures.config_keys import QUALITY, RATIO, number_of, title_of
from shiftcal.report.figures.sensitivity import metrics_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Heat:
    """A method's metrics over a grid of two keys.

    Attributes:
        method: Whose.
        rows: The values of the first key.
        columns: The values of the second key.
        values: By part and metric: rows of means over seeds, None where no run has that pair.
    """

    method: str
    keys: tuple[str, str]
    rows: tuple[float, ...]
    columns: tuple[float, ...]
    values: Mapping[tuple[str, str], tuple[tuple[float | None, ...], ...]]


def heat_data(records: Sequence[RunRecord], keys: tuple[str, str] = (RATIO, QUALITY)) -> Heat:
    """Average the runs of each pair of values; the records are those of one method on one data set."""
    methods = sorted({record.method for record in records})
    if len(methods) != 1:
        raise wrong("records", "of one method", ", ".join(methods))
    check_only(records, set(keys))
    by_pair: dict[tuple[float, float], list[RunRecord]] = {}
    for record in records:
        by_pair.setdefault((number_of(record, keys[0]), number_of(record, keys[1])), []).append(record)
    rows, columns = (tuple(sorted({pair[k] for pair in by_pair})) for k in (0, 1))
    if len(rows) < 2 or len(columns) < 2:
        expected = f"of runs with several values of {keys[0]} and of {keys[1]} (one quality a run)"
        raise wrong("records", expected, f"{len(rows)} and {len(columns)} values")
    measured = {pair: metrics_of(own) for pair, own in by_pair.items()}
    shared = set.intersection(*(set(metrics) for metrics in measured.values()))
    found: dict[tuple[str, str], tuple[tuple[float | None, ...], ...]] = {}
    for name in ((part, metric) for part in PARTS for metric in METRICS if (part, metric) in shared):
        means = {pair: statistics.mean(metrics[name]) for pair, metrics in measured.items()}
        found[name] = tuple(tuple(means.get((row, column)) for column in columns) for row in rows)
    return Heat(methods[0], keys, rows, columns, found)


def draw_heat(heat: Heat) -> Figure:
    """Draw a map for each part and metric, darker where it is worse."""
    parts = list(dict.fromkeys(part for part, _ in heat.values))
    width = max(3.0, 0.75 * len(heat.columns) + 1.6)
    figure = blank(width * len(METRICS), (0.55 * len(heat.rows) + 1.5) * len(parts))
    axes = figure.subplots(len(parts), len(METRICS), squeeze=False)
    for row, part in zip(axes, parts, strict=True):
        for axis, (metric, title) in zip(row, METRICS.items(), strict=True):
            _draw_map(axis, heat, (part, metric))
            axis.set_title(f"{title.removesuffix(', %')}, {PARTS[part]}, %", fontsize=10)
    for row in axes:
        row[0].set_ylabel(_short(heat.keys[0]))
    for axis in axes[-1]:
        axis.set_xlabel(_short(heat.keys[1]))
    figure.suptitle(shown(heat.method), fontsize=11)
    return figure


def _draw_map(axis: Axes, heat: Heat, name: tuple[str, str]) -> None:
    import numpy as np

    table = np.array([[np.nan if v is None else 100 * v for v in row] for row in heat.values[name]])
    low, high = float(np.nanmin(table)), float(np.nanmax(table))
    axis.imshow(table, cmap="Blues_r" if name[1] == "accuracy" else "Reds", aspect="auto", vmin=low, vmax=high)
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            if np.isnan(value):
                continue
            share = (value - low) / (high - low) if high > low else 0.0
            dark = (1 - share if name[1] == "accuracy" else share) > 0.6
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=9, color="white" if dark else "black")
    axis.set_xticks(range(len(heat.columns)), [f"{value:g}" for value in heat.columns])
    axis.set_yticks(range(len(heat.rows)), [f"{value:g}" for value in heat.rows])


def _short(key: str) -> str:
    return {RATIO: "ρ", QUALITY: "λ"}.get(key) or title_of(key)
