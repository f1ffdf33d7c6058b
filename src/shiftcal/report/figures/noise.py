"""Gradient noise of the constraint: how far two batches agree on its gradient, and with the main one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shiftcal.records.arrays import Arrays
from shiftcal.report.figures.canvas import blank, colours_of, legend_below, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURED = {
    "cosine": "cosine of two batches' constraint gradients",
    "main_cosine": "cosine of main and constraint gradient",
    "conflict_rate": "conflicts, share of pairs",
    "norm": "norm of the constraint's gradient",
}


@dataclass(frozen=True)
class NoiseBar:
    """What was measured for one run and one set of parameters: means and standard errors, by name."""

    run: str
    scope: str
    means: Mapping[str, float]
    errors: Mapping[str, float]


def noise_data(arrays: Arrays) -> list[NoiseBar]:
    """Put arrays and labels together, and check that they fit."""
    runs, scopes = arrays.strings("runs"), arrays.strings("scopes")
    for name, count in (("runs", len(runs)), ("scopes", len(scopes))):
        arrays.check_few(name, count)
    means = {name: arrays.array(name, len(runs), len(scopes)) for name in MEASURED}
    errors = {name: arrays.array(f"{name}_error", len(runs), len(scopes)) for name in MEASURED}
    return [
        NoiseBar(
            run,
            scope,
            {name: float(table[r, s]) for name, table in means.items()},
            {name: float(table[r, s]) for name, table in errors.items()},
        )
        for r, run in enumerate(runs)
        for s, scope in enumerate(scopes)
    ]


def draw_noise(bars: Sequence[NoiseBar]) -> Figure:
    """Draw an axis for each number, bars in groups by the set of parameters, with standard errors."""
    runs, scopes = (list(dict.fromkeys(getattr(bar, key) for bar in bars)) for key in ("run", "scope"))
    figure, colours, step = blank(9.0, 6.4), colours_of(runs), 0.8 / len(runs)
    axes = figure.subplots(2, 2)
    for axis, (name, title) in zip(axes.flatten(), MEASURED.items(), strict=True):
        for place, run in enumerate(runs):
            own = [bar for bar in bars if bar.run == run]
            at = [scopes.index(bar.scope) + (place - (len(runs) - 1) / 2) * step for bar in own]
            values, errors = [bar.means[name] for bar in own], [bar.errors[name] for bar in own]
            axis.bar(at, values, step * 0.92, yerr=errors, capsize=3, color=colours[run], label=shown(run))
        axis.set_xticks(range(len(scopes)), [shown(scope) for scope in scopes])
        axis.set_title(title, fontsize=10)
        axis.grid(axis="y", alpha=0.3)
        axis.axhline(0, color="0.4", linewidth=0.8)
    legend_below(figure, axes[0][0], columns=5)
    return figure
