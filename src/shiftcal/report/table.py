"""The comparison as one table: methods × metrics, in distribution and under shift."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from shiftcal._errors import wrong
from shiftcal._io import first_difference
from shiftcal.methods import METHODS
from shiftcal.records import SPEED_KEYS, Cell, Evaluation, Mean, RunRecord
from shiftcal.report.text import for_markdown, for_terminal, plain

# Title, key of a metric (see `records.Cell.value`), factor, decimals. NLL is no percentage.
COLUMNS = (
    ("Acc.", "accuracy", 100, 1),
    ("ECE", "ece", 100, 2),
    ("w/ TS", "clean/ece", 100, 2),
    ("w/ TS aug.", "shift_aware/ece", 100, 2),
    ("CECE", "classwise_ece", 100, 2),
    ("ACE", "adaptive_ece", 100, 2),
    ("NLL", "nll", 1, 3),
)
_CAPTION = (
    "Acc., ECE, ECE after temperature scaling (w/ TS{augmented}), classwise ECE and adaptive ECE in %; NLL in nats. "
    "Lower is better but for Acc."
)
_AUGMENTED = "; w/ TS aug.: fitted on clean and augmented validation images"


# Keys that decide how fast a run is or what else it evaluates, not what the table shows.
FREE = SPEED_KEYS | {"evaluation.also"}


@dataclass(frozen=True)
class Row:
    """One method's numbers over its seeds: a cell is the list of values, one per seed."""

    method: str
    cells: dict[tuple[str, str], list[float]]

    def text(self, part: str, column: tuple[str, str, int, int]) -> str:
        """Write a cell: the value, or mean ± standard deviation over several seeds."""
        _, key, factor, decimals = column
        values = [value * factor for value in self.cells[part, key]]
        if not values:
            return "–"
        if len(values) == 1:
            return f"{values[0]:.{decimals}f}"
        return f"{statistics.mean(values):.{decimals}f} ± {statistics.stdev(values):.{decimals}f}"


def rows_of(records: list[RunRecord]) -> list[Row]:
    """Group records by method, in the order of METHODS."""
    check_comparable(records)
    order = list(METHODS)
    names = sorted({r.method for r in records}, key=lambda m: (order.index(m) if m in order else len(order), m))
    return [_row(name, [r for r in records if r.method == name]) for name in names]


def check_comparable(records: list[RunRecord]) -> None:
    """Raise unless all records were measured on the same data in the same way; domains may be held out in turn."""
    first = _without_holdout(records[0].config)
    by_method: dict[str, tuple[dict[str, Any], set[tuple[int, str | None]]]] = {}
    for record in records:
        method, config = record.method, _without_holdout(record.config)
        seed = (record.seed, _holdout(record))
        for section in ("data", "evaluation"):
            differing = first_difference(first[section], config[section], f"{section}.", FREE)
            if differing:
                raise wrong("records", "of runs on the same data and shifts", f"{method} with {differing}")
        known, seeds = by_method.setdefault(method, (config, set()))
        differing = first_difference(known | {"seed": 0}, config | {"seed": 0}, ignored=FREE)
        if differing:  # a mean over them would pass for one over seeds
            raise wrong("records", "of runs that differ in method and seed alone", f"{method} with {differing}")
        if seed in seeds:
            raise wrong("records", "of one run per method and seed", f"two of {method} with seed {record.seed}")
        seeds.add(seed)
    _check_alike(records)
    for method, (_, seeds) in by_method.items():
        domains = {holdout for _, holdout in seeds}
        if len(seeds) < len(domains) * len({seed for seed, _ in seeds}):  # a mean would be over other domains
            raise wrong("records", "of runs that hold out the same domains for each seed", f"{method} without some")
        if domains != {holdout for _, holdout in by_method[records[0].method][1]}:
            raise wrong(
                "records", "of runs that hold out the same domains", f"{method} with {sorted(map(str, domains))}"
            )


def _check_alike(records: list[RunRecord]) -> None:
    """Raise unless all records have the same bins, and the same severities of a shift."""
    known: dict[str, Any] = {}
    for record in records:
        reliability, severities = record.evaluation.reliability, _severities(record.evaluation)
        found: dict[str, Any] = {f"severities of {shift}": sorted(own) for shift, own in severities.items()}
        found["bins"] = len(reliability.clean.count)
        if reliability.shifted is not None:
            found["bins under shift"] = len(reliability.shifted.count)
        for name, value in found.items():
            if known.setdefault(name, value) != value:
                found_text = f"{record.method}, seed {record.seed}, with {value} instead of {known[name]}"
                raise wrong("records", f"of runs with the same {plain(name)}", plain(found_text))


def _severities(evaluation: Evaluation) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for cell in evaluation.shifts:
        found.setdefault(str(cell.shift), []).append(cell.severity or 0)
    return found


def _holdout(record: RunRecord) -> str | None:
    holdout: str | None = record.config["data"].get("holdout")
    return holdout


def _without_holdout(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"data": config["data"] | {"holdout": None}}


def _row(method: str, records: list[RunRecord]) -> Row:
    """Collect a method's values, one for each seed: the mean over the domains held out, where there are several."""
    by_seed: dict[int, list[dict[str, Cell | Mean]]] = {}
    for record in records:
        by_seed.setdefault(record.seed, []).append(_parts(record.evaluation))
    shared = [part for part in _parts(records[0].evaluation) if all(part in e for s in by_seed.values() for e in s)]
    cells = {(part, key): _values(by_seed, part, key) for part in shared for _, key, _, _ in COLUMNS}
    return Row(method, cells)


def _values(by_seed: dict[int, list[dict[str, Cell | Mean]]], part: str, key: str) -> list[float]:
    """Return a metric for each seed; none where some run did not measure it."""
    found = [[evaluation[part].value(key) for evaluation in runs] for runs in by_seed.values()]
    whole = [[value for value in values if value is not None] for values in found]
    if any(len(some) < len(values) for some, values in zip(whole, found, strict=True)):
        return []
    return [statistics.mean(values) for values in whole]


def _parts(evaluation: Evaluation) -> dict[str, Cell | Mean]:
    """List the sets with numbers, by the title of their table: clean, shifted, and others that are reported."""
    clean = "In distribution" + (" (the validation set)" if evaluation.clean_is_validation else "")
    parts: dict[str, Cell | Mean] = {clean: evaluation.clean}
    if evaluation.shifted is not None:
        parts["Mean over shifts"] = evaluation.shifted
    return parts | {f"Also: {name}": cell for name, cell in evaluation.other_tests.items()}


def columns_of(rows: list[Row]) -> list[tuple[str, str, int, int]]:
    """List the columns in which some row has a number."""
    return [column for column in COLUMNS if any(row.cells[part, column[1]] for row in rows for part in parts_of(rows))]


def caption_of(rows: list[Row]) -> str:
    """Explain the columns."""
    augmented = any(column[1].startswith("shift_aware") for column in columns_of(rows))
    return _CAPTION.format(augmented=_AUGMENTED if augmented else "")


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
    measured = [row for row in rows if row.cells[part, key]]
    return choose(measured, key=lambda row: statistics.mean(row.cells[part, key])) if measured else None


def markdown(records: list[RunRecord]) -> str:
    """Write the table in Markdown, the best of each column in bold."""
    rows = rows_of(records)
    columns, lines = columns_of(rows), []
    for part in parts_of(rows):
        lines += [
            f"| {for_markdown(part)} | " + " | ".join(column[0] for column in columns) + " |",
            "|---|" + "---:|" * len(columns),
        ]
        for row in rows:
            cells = [f"**{row.text(part, c)}**" if best(rows, part, c) is row else row.text(part, c) for c in columns]
            lines.append(f"| {for_markdown(row.method)} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join([*lines, caption_of(rows), ""])


def print_table(records: list[RunRecord]) -> None:
    """Print the table on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    rows = rows_of(records)
    columns = columns_of(rows)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # a file has no width to fit
    for part in parts_of(rows):
        table = Table(
            title=for_terminal(part), title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1)
        )
        table.add_column("method", no_wrap=True)
        for column in columns:
            table.add_column(column[0], justify="right", no_wrap=True)
        for row in rows:
            cells = [row.text(part, c) for c in columns]
            table.add_row(
                for_terminal(row.method),
                *[f"[bold]{t}[/]" if best(rows, part, c) is row else t for t, c in zip(cells, columns, strict=True)],
            )
        console.print(table)
    console.print(caption_of(rows), style="dim")


def before_and_after(record: RunRecord) -> list[RunRecord]:
    """Make of a fine-tuned run's record two: one for the checkpoint as it was, one for what became of it."""
    return [record.model_copy(update={"method": "checkpoint", "evaluation": record.before}), record]
