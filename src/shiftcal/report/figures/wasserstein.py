"""Gaussian 2-Wasserstein distances of features by λ, ρ and shift (FGR paper, appendix "Feature-Space Wasserstein")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shiftcal.records.arrays import Arrays
from shiftcal.report.figures.canvas import blank, colours_of, legend_below, marker_of, shown
from shiftcal.report.text import for_latex, for_markdown, markdown_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Distances:
    """One table: the distance W₂ for each model and value.

    Attributes:
        title: What is compared.
        name: What varies, "λ", "ρ" or "shift".
        values: Its values, as text.
        by_model: For each model, the distance at each value.
    """

    title: str
    name: str
    values: tuple[str, ...]
    by_model: dict[str, tuple[float, ...]]


def distance_data(arrays: Arrays) -> list[Distances]:
    """Make the tables: clean against mixed by λ and by ρ, then clean against each shift, as far as measured."""
    models = arrays.strings("runs")
    arrays.check_few("runs", len(models))
    found = []
    mixed = "original against mixed training images"
    for name, of, key, fixed in (
        ("λ", "by_quality", "qualities", f"ρ = {arrays.number('ratio'):g}"),
        ("ρ", "by_ratio", "ratios", f"λ = {arrays.number('quality'):g}"),
    ):
        values = arrays.array(key, None)
        if len(values):
            rows = arrays.array(of, len(models), len(values))
            found.append(_table(f"{mixed}, {fixed}", name, [f"{v:g}" for v in values.tolist()], models, rows))
    shifts = arrays.strings("shifts")
    if shifts:
        rows = arrays.array("by_shift", len(models), len(shifts))
        found.append(_table("clean against shifted test images", "shift", shifts, models, rows))
    for table in found:
        arrays.check_few("values", len(table.values), most=200)
    arrays.check_few("tables", len(found))
    return found


def _table(title: str, name: str, values: Sequence[str], models: Sequence[str], rows: Any) -> Distances:
    by_model = {model: tuple(map(float, row)) for model, row in zip(models, rows, strict=True)}
    return Distances(title, name, tuple(values), by_model)


def distances_markdown(tables: Sequence[Distances]) -> str:
    """Write the tables in Markdown."""
    lines: list[str] = []
    for table in tables:
        rows = [[for_markdown(model), *(f"{v:.3f}" for v in row)] for model, row in table.by_model.items()]
        heads = [table.name, *map(for_markdown, table.values)]
        lines += [f"W₂ of features, {table.title}", "", *markdown_table(heads, rows), ""]
    return "\n".join(lines)


def distances_latex(tables: Sequence[Distances]) -> str:
    """Write the tables in LaTeX, as the paper has them."""
    letters = {"λ": r"$\lambda$", "ρ": r"$\rho$"}
    lines: list[str] = []
    for table in tables:
        lines += [f"% W2 of features, {for_latex(table.title).replace('λ', 'lambda').replace('ρ', 'rho')}"]
        lines += [rf"\begin{{tabular}}{{l|{'c' * len(table.values)}}}", r"\toprule"]
        lines += [
            " & ".join([letters.get(table.name, table.name), *map(for_latex, table.values)]) + r" \\",
            r"\midrule",
        ]
        lines += [" & ".join([for_latex(m), *(f"{v:.3f}" for v in row)]) + r" \\" for m, row in table.by_model.items()]
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def draw_distances(tables: Sequence[Distances]) -> Figure:
    """Draw an axis for each table: lines over λ and ρ, bars for shifts."""
    models = list(tables[0].by_model)
    widths = [max(3.2, 0.42 * len(t.values) * (1 + 0.3 * len(models))) if t.name == "shift" else 3.4 for t in tables]
    figure, colours = blank(sum(widths), 3.9), colours_of(models)
    axes = figure.subplots(1, len(tables), squeeze=False, width_ratios=widths)[0]
    for axis, table in zip(axes, tables, strict=True):
        for place, (model, row) in enumerate(table.by_model.items()):
            if table.name == "shift":
                step = 0.8 / len(models)
                at = [k + (place - (len(models) - 1) / 2) * step for k in range(len(row))]
                axis.bar(at, row, step * 0.95, color=colours[model], label=shown(model))
            else:
                axis.plot(range(len(row)), row, f"{marker_of(place)}-", color=colours[model], label=shown(model))
        tilt = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if table.name == "shift" else {}
        axis.set_xticks(range(len(table.values)), [shown(value) for value in table.values], fontsize=8, **tilt)
        axis.set(title=table.title, xlabel="" if table.name == "shift" else table.name, ylim=(0, None))
        axis.title.set_fontsize(9)
        axis.grid(axis="y", alpha=0.3)
    axes[0].set_ylabel("W₂ of features")
    legend_below(figure, axes[0], columns=5)
    return figure
