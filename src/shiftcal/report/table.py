"""The comparison as one table: methods × metrics, in distribution and under shift."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from shiftcal._checks import wrong
from shiftcal.methods import METHODS
from shiftcal.records import first_difference

# Title, key in a record's evaluation, factor, decimals. NLL is no percentage.
COLUMNS = (
    ("Acc.", "accuracy", 100, 1),
    ("ECE", "ece", 100, 2),
    ("w/ TS", "ece_ts", 100, 2),
    ("CECE", "classwise_ece", 100, 2),
    ("ACE", "adaptive_ece", 100, 2),
    ("NLL", "nll", 1, 3),
)
PARTS = (("In distribution", "id"), ("Mean over shifts", "shifted"))
CAPTION = (
    "Acc., ECE, ECE after temperature scaling (w/ TS), classwise ECE and adaptive ECE in %; NLL in nats. "
    "Lower is better but for Acc."
)


@dataclass(frozen=True)
class Row:
    """One method's numbers over its seeds: a cell is the list of values, one per seed."""

    method: str
    cells: dict[tuple[str, str], list[float]]

    def text(self, part: str, column: tuple[str, str, int, int]) -> str:
        """Write a cell: the value, or mean ± standard deviation over several seeds."""
        _, key, factor, decimals = column
        values = [value * factor for value in self.cells[part, key]]
        if len(values) == 1:
            return f"{values[0]:.{decimals}f}"
        return f"{statistics.mean(values):.{decimals}f} ± {statistics.stdev(values):.{decimals}f}"


def rows_of(records: list[dict[str, Any]]) -> list[Row]:
    """Group records by method, in the order of METHODS."""
    check_comparable(records)
    order = list(METHODS)
    names = sorted({r["method"] for r in records}, key=lambda m: (order.index(m) if m in order else len(order), m))
    return [_row(name, [r["evaluation"] for r in records if r["method"] == name]) for name in names]


def check_comparable(records: list[dict[str, Any]]) -> None:
    """Raise unless all records were measured on the same data in the same way."""
    first = records[0]["config"]
    by_method: dict[str, tuple[dict[str, Any], set[int]]] = {}
    for record in records:
        method, seed, config = record["method"], record["seed"], record["config"]
        for section in ("data", "evaluation"):
            differing = first_difference(first[section], config[section], f"{section}.")
            if differing:
                raise wrong("records", "of runs on the same data and shifts", f"{method} with {differing}")
        known, seeds = by_method.setdefault(method, (config, set()))
        differing = first_difference(known | {"seed": 0}, config | {"seed": 0})
        if differing:  # a mean over them would pass for one over seeds
            raise wrong("records", "of runs that differ in method and seed alone", f"{method} with {differing}")
        if seed in seeds:
            raise wrong("records", "of one run per method and seed", f"two of {method} with seed {seed}")
        seeds.add(seed)


def _row(method: str, evaluations: list[dict[str, Any]]) -> Row:
    cells = {
        (part, key): [e[part][key] for e in evaluations if e[part]] for _, part in PARTS for _, key, _, _ in COLUMNS
    }
    return Row(method, {place: values for place, values in cells.items() if values})


def parts_of(rows: list[Row]) -> list[tuple[str, str]]:
    """List the halves of the table for which every row has numbers."""
    return [(title, part) for title, part in PARTS if all((part, COLUMNS[0][1]) in row.cells for row in rows)]


def best(rows: list[Row], part: str, column: tuple[str, str, int, int]) -> Row | None:
    """Find the row with the best mean in a column; of a single row there is none."""
    if len(rows) < 2:
        return None
    key = column[1]
    choose = max if key == "accuracy" else min
    return choose(rows, key=lambda row: statistics.mean(row.cells[part, key]))


def markdown(records: list[dict[str, Any]]) -> str:
    """Write the table in Markdown, the best of each column in bold."""
    rows = rows_of(records)
    lines = []
    for title, part in parts_of(rows):
        lines += [
            f"| {title} | " + " | ".join(column[0] for column in COLUMNS) + " |",
            "|---|" + "---:|" * len(COLUMNS),
        ]
        for row in rows:
            cells = [f"**{row.text(part, c)}**" if best(rows, part, c) is row else row.text(part, c) for c in COLUMNS]
            lines.append(f"| {row.method} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join([*lines, CAPTION, ""])


def print_table(records: list[dict[str, Any]]) -> None:
    """Print the table on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    rows = rows_of(records)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # a file has no width to fit
    for title, part in parts_of(rows):
        table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
        table.add_column("method", no_wrap=True)
        for column in COLUMNS:
            table.add_column(column[0], justify="right", no_wrap=True)
        for row in rows:
            cells = [row.text(part, c) for c in COLUMNS]
            table.add_row(
                row.method,
                *[f"[bold]{t}[/]" if best(rows, part, c) is row else t for t, c in zip(cells, COLUMNS, strict=True)],
            )
        console.print(table)
    console.print(CAPTION, style="dim")
