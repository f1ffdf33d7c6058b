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
    return [_row(name, [r for r in records if r["method"] == name]) for name in names]


def check_comparable(records: list[dict[str, Any]]) -> None:
    """Raise unless all records were measured on the same data in the same way; domains may be held out in turn."""
    first = _without_holdout(records[0]["config"])
    by_method: dict[str, tuple[dict[str, Any], set[tuple[int, str | None]]]] = {}
    for record in records:
        method, config = record["method"], _without_holdout(record["config"])
        seed = (record["seed"], _holdout(record))
        for section in ("data", "evaluation"):
            differing = first_difference(first[section], config[section], f"{section}.")
            if differing:
                raise wrong("records", "of runs on the same data and shifts", f"{method} with {differing}")
        known, seeds = by_method.setdefault(method, (config, set()))
        differing = first_difference(known | {"seed": 0}, config | {"seed": 0})
        if differing:  # a mean over them would pass for one over seeds
            raise wrong("records", "of runs that differ in method and seed alone", f"{method} with {differing}")
        if seed in seeds:
            raise wrong("records", "of one run per method and seed", f"two of {method} with seed {record['seed']}")
        seeds.add(seed)
    for method, (_, seeds) in by_method.items():
        domains = {holdout for _, holdout in seeds}
        if len(seeds) < len(domains) * len({seed for seed, _ in seeds}):  # a mean would be over other domains
            raise wrong("records", "of runs that hold out the same domains for each seed", f"{method} without some")
        if domains != {holdout for _, holdout in by_method[records[0]["method"]][1]}:
            raise wrong(
                "records", "of runs that hold out the same domains", f"{method} with {sorted(map(str, domains))}"
            )


def _holdout(record: dict[str, Any]) -> str | None:
    holdout: str | None = record["config"]["data"].get("holdout")
    return holdout


def _without_holdout(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"data": config["data"] | {"holdout": None}}


def _row(method: str, records: list[dict[str, Any]]) -> Row:
    """Collect a method's values, one for each seed: the mean over the domains held out, where there are several."""
    by_seed: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        by_seed.setdefault(record["seed"], []).append(_parts(record["evaluation"]))
    shared = [part for part in _parts(records[0]["evaluation"]) if all(part in e for s in by_seed.values() for e in s)]
    cells = {
        (part, key): [statistics.mean(e[part][key] for e in several) for several in by_seed.values()]
        for part in shared
        for _, key, _, _ in COLUMNS
    }
    return Row(method, cells)


def _parts(evaluation: dict[str, Any]) -> dict[str, dict[str, float]]:
    """List the sets with numbers, by the title of their table: clean, shifted, and those reported besides."""
    clean = "In distribution" + (" (the validation set)" if evaluation.get("id_is_validation") else "")
    besides = {f"Besides: {name}": values for name, values in evaluation.get("besides", {}).items()}
    parts = {clean: evaluation["id"], "Mean over shifts": evaluation["shifted"], **besides}
    return {title: values for title, values in parts.items() if values}


def parts_of(rows: list[Row]) -> list[str]:
    """List the parts of the table for which every row has numbers."""
    titles = dict.fromkeys(part for part, _ in rows[0].cells)
    return [title for title in titles if all((title, COLUMNS[0][1]) in row.cells for row in rows)]


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
    for part in parts_of(rows):
        lines += [
            f"| {part} | " + " | ".join(column[0] for column in COLUMNS) + " |",
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
    for part in parts_of(rows):
        table = Table(title=part, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
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


def before_and_after(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Make of a fine-tuned run's record two: one for the checkpoint as it was, one for what became of it."""
    return [record | {"method": "checkpoint", "evaluation": record["before"]}, record]
