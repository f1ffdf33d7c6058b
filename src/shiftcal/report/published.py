"""The paper's numbers beside ours, for recipes that it has numbers of (`published.toml`)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiftcal._sections import Section
from shiftcal.experiments.recipes import read_recipe
from shiftcal.records import RunRecord
from shiftcal.report.formats import tabular
from shiftcal.report.labels import FREE, Setting, base_of, settings_of
from shiftcal.report.table import SHIFTED, WIDE, Column, Row, rows_of
from shiftcal.report.text import for_latex, for_markdown, markdown_table
from shiftcal.training.settings import (
    ConstraintSettings,
    FilterSettings,
    GammaSettings,
    PerturbSettings,
    TrainSettings,
)

CAPTION = (
    "Ours, and what the paper prints for the same recipe, without deviations. Splits of the training images, libraries "
    "and what the paper leaves open may differ; * marks runs with other values than the recipe's."
)
_PLACE = Path(__file__).with_name("published.toml")
_TRAINING: dict[str, type[Section]] = {
    "train": TrainSettings,
    "filter": FilterSettings,
    "perturb": PerturbSettings,
    "gamma": GammaSettings,
    "constraint": ConstraintSettings,
}
_COLUMNS = {column[1]: column for column in WIDE}


@dataclass(frozen=True)
class Beside:
    """One of the paper's tables beside ours: a row is a method, then for each column our text and the paper's."""

    title: str
    heads: list[str]
    rows: list[list[str]]


@functools.cache
def published() -> tuple[dict[str, Any], ...]:
    """Read the paper's tables: each with number, recipe, part, columns and methods; numbers as text, as printed."""
    return tuple(tomllib.loads(_PLACE.read_text(encoding="utf-8"))["table"])


def beside(records: list[RunRecord]) -> list[Beside]:
    """List the paper's tables of the records' recipes that share a method with them."""
    return [table for setting in settings_of(records) for table in _of_setting(setting)]


def _of_setting(setting: Setting) -> Iterator[Beside]:
    recipes = {record.recipe for record in setting.records}
    if len(recipes) > 1:
        return
    rows = rows_of(setting.records)
    own = [row for row in rows if row.method == base_of(row.method)]  # swept ones are not the paper's
    theirs_too = recipes <= {table["recipe"] for table in published()}
    changed = {record.method for record in setting.records if theirs_too and _changes_the_recipe(record)}
    for table in published():
        part = next((p for p in dict.fromkeys(p for p, _ in rows[0].cells) if _is_part(p, table["part"])), None)
        if table["recipe"] not in recipes or part is None:
            continue
        columns = [_COLUMNS[key] for key in table["columns"]]
        found = [_texts(row, part, columns, theirs) for row in own if (theirs := _theirs(row, table))]
        found = [[f"{name} *" if name in changed else name, *texts] for name, *texts in found]
        if found:
            start = f"{setting.title}: " if setting.title else ""
            title = f"{start}{part}, beside the paper's Table {table['number']}"
            yield Beside(title, [head for column in columns for head in (column[0], "paper")], found)


def _changes_the_recipe(record: RunRecord) -> bool:
    """Tell whether a run trained with other values than its recipe has; keys that it does not know tell nothing."""
    recipe = read_recipe(record.recipe)
    for section, kind in _TRAINING.items():
        stored = record.config.get(section)
        known = stored if isinstance(stored, dict) else {}
        own = kind.model_validate(recipe.get(section, {})).model_dump(mode="json")
        if any(known.get(key, value) != value for key, value in own.items() if f"{section}.{key}" not in FREE):
            return True
    return False


def _is_part(title: str, name: str) -> bool:
    return {"clean": title.startswith("In distribution"), "shifted": title == SHIFTED}.get(name, title == "Also: val")


def _theirs(row: Row, table: dict[str, Any]) -> list[str] | None:
    found: list[str] | None = table["methods"].get(base_of(row.method))
    return found


def _texts(row: Row, part: str, columns: list[Column], theirs: list[str]) -> list[str]:
    texts = [row.method]
    for (title, key, factor, _), printed in zip(columns, theirs, strict=True):
        decimals = len(printed.partition(".")[2])  # ours with as many as the paper's
        texts += [row.text(part, (title, key, factor, decimals)), printed]
    return texts


def markdown(records: list[RunRecord]) -> str:
    """Write the paper's numbers beside ours in Markdown; nothing where it has none."""
    lines: list[str] = []
    for table in beside(records):
        rows = [[*map(for_markdown, row)] for row in table.rows]
        lines += [*markdown_table([for_markdown(table.title), *table.heads], rows), ""]
    return "\n".join([*lines, CAPTION, ""]) if lines else ""


def latex(records: list[RunRecord]) -> str:
    """Write the paper's numbers beside ours in LaTeX; nothing where it has none."""
    parts = [(table.title, table.heads, [[*map(for_latex, row)] for row in table.rows]) for table in beside(records)]
    return tabular(parts, CAPTION) if parts else ""
