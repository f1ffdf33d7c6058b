"""The comparison as one table: methods × metrics, in distribution and under shift."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shiftcal._errors import wrong
from shiftcal._io import first_difference
from shiftcal.records import Cell, Evaluation, Mean, RunRecord
from shiftcal.report.intervals import Difference, difference
from shiftcal.report.labels import FREE, Setting, config_of, holdout_of, methods_of, settings_of, shape_of
from shiftcal.report.text import for_markdown, markdown_table, plain

Column = tuple[str, str, int, int]
# Title, key of a metric (see `records.Cell.value`), factor, decimals. NLL is no percentage.
COLUMNS: tuple[Column, ...] = (
    ("Acc.", "accuracy", 100, 1),
    ("ECE", "ece", 100, 2),
    ("w/ TS", "clean/ece", 100, 2),
    ("w/ TS aug.", "shift_aware/ece", 100, 2),
    ("CECE", "classwise_ece", 100, 2),
    ("ACE", "adaptive_ece", 100, 2),
    ("NLL", "nll", 1, 3),
)
# The columns of a paper, where there is more room.
WIDE: tuple[Column, ...] = (
    ("Acc.", "accuracy", 100, 2),
    *COLUMNS[1:5],
    ("w/ TS", "clean/classwise_ece", 100, 2),
    COLUMNS[5],
    ("w/ TS", "clean/adaptive_ece", 100, 2),
    COLUMNS[6],
)
_CAPTION = (
    "Acc., ECE, ECE after temperature scaling (w/ TS{augmented}), classwise ECE and adaptive ECE in %; NLL in nats. "
    "Lower is better but for Acc."
)
CLEAN, SHIFTED = "In distribution", "Mean over shifts"
_LITTLE = "not counted: right less than half as often as the best."
_BOLD = " In bold: better than every other row, where the 95 % interval of each paired difference leaves out 0."
_AUGMENTED = "; w/ TS aug.: fitted on clean and augmented validation images"


@dataclass(frozen=True)
class Row:
    """One method's numbers over its seeds: a cell is the list of values, one per seed, or empty."""

    method: str
    seeds: tuple[int, ...]
    cells: dict[tuple[str, str], list[float]]

    def text(self, part: str, column: Column) -> str:
        """Write a cell: the value, or mean ± standard deviation over several seeds."""
        _, key, factor, decimals = column
        values = [value * factor for value in self.cells.get((part, key), ())]
        if not values:
            return "–"
        if len(values) == 1:
            return f"{values[0]:.{decimals}f}"
        return f"{statistics.mean(values):.{decimals}f} ± {statistics.stdev(values):.{decimals}f}"


@dataclass(frozen=True)
class Table:
    """One table of the report.

    Attributes:
        title: Its title, with the setting where there are several.
        part: Which cells of its rows it shows.
        rows: A row for each method.
        compared: Whether its rows are of one setting, so that one of them can be the best.
    """

    title: str
    part: str
    rows: list[Row]
    compared: bool = True


def tables_of(records: list[RunRecord]) -> list[Table]:
    """List the tables of records: in each setting clean and shifted, then one for each domain held out.

    Several settings come together in a table first; then those that compare methods have tables of their own.
    """
    settings = settings_of(records)
    if len(settings) == 1:
        return _tables_of(settings[0])
    several = [setting for setting in settings if len(methods_of(setting.records)) > 1]
    return _overview(settings) + [table for setting in several for table in _tables_of(setting)]


def _overview(settings: Sequence[Setting]) -> list[Table]:
    """List all settings in one table, clean, and in one under shift."""
    found: dict[str, list[Row]] = {}
    for setting in settings:
        for row in rows_of(setting.records):
            for part in dict.fromkeys(part for part, _ in row.cells):
                if part == SHIFTED or part.startswith(CLEAN):
                    title = SHIFTED if part == SHIFTED else CLEAN
                    cells = {(title, key): values for (own, key), values in row.cells.items() if own == part}
                    found.setdefault(title, []).append(Row(f"{setting.title}: {row.method}", row.seeds, cells))
    return [Table(title, title, rows, compared=False) for title, rows in sorted(found.items())]


def _tables_of(setting: Setting) -> list[Table]:
    start = f"{setting.title}: " if setting.title else ""
    rows = rows_of(setting.records)
    tables = [Table(start + part, part, rows) for part in parts_of(rows)]
    domains = sorted({holdout for record in setting.records if (holdout := holdout_of(record)) is not None})
    for domain in domains if len(domains) > 1 else ():
        own = rows_of([record for record in setting.records if holdout_of(record) == domain])
        tables += [Table(f"{start}Held out: {domain}", part, own) for part in parts_of(own) if part == SHIFTED]
    return tables


def rows_of(records: list[RunRecord]) -> list[Row]:
    """Group records by method, in the order of METHODS."""
    check_comparable(records)
    return [_row(name, [r for r in records if r.method == name]) for name in methods_of(records)]


def check_comparable(records: list[RunRecord]) -> None:
    """Raise unless all records were measured on the same data in the same way; domains may be held out in turn."""
    first = _without_holdout(config_of(records[0]))
    by_method: dict[str, tuple[dict[str, Any], set[tuple[int, str | None]]]] = {}
    for record in records:
        method, config = record.method, _without_holdout(config_of(record))
        seed = (record.seed, holdout_of(record))
        for section in ("data", "evaluation"):
            differing = first_difference(first[section], config[section], f"{section}.", FREE)
            if differing:
                raise wrong("records", "of runs on the same data and shifts", f"{method} with {differing}")
        known, seeds = by_method.setdefault(method, (config, set()))
        differing = first_difference(known | {"seed": 0}, config | {"seed": 0}, ignored=FREE)
        if differing:  # a mean over them would pass for one over seeds
            raise wrong("records", "of runs that differ in method and seed alone", f"{method} with {differing}")
        if seed in seeds:
            same = [one for one in records if (one.method, one.seed) == (method, record.seed)]
            count = "two" if len(same) == 2 else f"{len(same)}"
            raise wrong("records", "of one run per method and seed", f"{count} of {method} with seed {record.seed}")
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
        for name, value in shape_of(record.evaluation).items():
            if known.setdefault(name, value) != value:
                found_text = f"{record.method}, seed {record.seed}, with {value} instead of {known[name]}"
                raise wrong("records", f"of runs with the same {plain(name)}", plain(found_text))


def _without_holdout(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"data": config["data"] | {"holdout": None}}


def _row(method: str, records: list[RunRecord]) -> Row:
    """Collect a method's values, one for each seed: the mean over the domains held out, where there are several."""
    by_seed: dict[int, list[dict[str, Cell | Mean]]] = {}
    for record in records:
        by_seed.setdefault(record.seed, []).append(_parts(record.evaluation))
    shared = [part for part in _parts(records[0].evaluation) if all(part in e for s in by_seed.values() for e in s)]
    keys = dict.fromkeys(column[1] for column in (*COLUMNS, *WIDE))
    cells = {(part, key): _values(by_seed, part, key) for part in shared for key in keys}
    return Row(method, tuple(sorted(by_seed)), cells)


def _values(by_seed: dict[int, list[dict[str, Cell | Mean]]], part: str, key: str) -> list[float]:
    """Return a metric for each seed, in order of the seeds; none where some run did not measure it."""
    found = [[evaluation[part].value(key) for evaluation in runs] for _, runs in sorted(by_seed.items())]
    whole = [[value for value in values if value is not None] for values in found]
    if any(len(some) < len(values) for some, values in zip(whole, found, strict=True)):
        return []
    return [statistics.mean(values) for values in whole]


def _parts(evaluation: Evaluation) -> dict[str, Cell | Mean]:
    """List the sets with numbers, by the title of their table: clean, shifted, and others that are reported."""
    clean = CLEAN + (" (the validation set)" if evaluation.clean_is_validation else "")
    parts: dict[str, Cell | Mean] = {clean: evaluation.clean}
    if evaluation.shifted is not None:
        parts[SHIFTED] = evaluation.shifted
    return parts | {f"Also: {name}": cell for name, cell in evaluation.other_tests.items()}


def columns_of(rows: list[Row]) -> list[Column]:
    """List the columns in which some row has a number."""
    return columns_in([Table(part, part, rows) for part in parts_of(rows)])


def columns_in(tables: list[Table], columns: Sequence[Column] = COLUMNS) -> list[Column]:
    """List the columns in which some row of some table has a number."""
    return [c for c in columns if any(row.cells.get((table.part, c[1])) for table in tables for row in table.rows)]


def caption_of(table: Table) -> str:
    """Explain the columns."""
    rows = table.rows
    augmented = any(column[1].startswith("shift_aware") for column in columns_of(rows))
    compared = table.compared and len(rows) > 1 and any(len(row.seeds) > 1 for row in rows)
    counted = learned(rows)
    left_out = [row.method for row in rows if row not in counted]
    bold = _BOLD + (f" {', '.join(left_out)} {_LITTLE}" if left_out else "")
    return _CAPTION.format(augmented=_AUGMENTED if augmented else "") + (bold if compared else "")


def caption_in(tables: list[Table]) -> str:
    """Explain the columns of several tables."""
    return max(map(caption_of, tables), key=len)


def parts_of(rows: list[Row]) -> list[str]:
    """List the parts of the table for which every row has numbers."""
    titles = dict.fromkeys(part for part, _ in rows[0].cells)
    return [title for title in titles if all((title, COLUMNS[0][1]) in row.cells for row in rows)]


def best(rows: list[Row], part: str, column: Column) -> Row | None:
    """Find the row that is better than each other one in a column: the interval of every paired difference says so.

    Seeds that two rows share are paired; with one seed, or with one row, there is none. Rows count that `learned`.
    """
    key = column[1]
    measured = [row for row in learned(rows) if row.cells.get((part, key))]
    if len(measured) < 2:
        return None
    choose = max if key == "accuracy" else min
    first = choose(measured, key=lambda row: statistics.mean(row.cells[part, key]))
    return first if all(_is_better(first, row, part, key) for row in measured if row is not first) else None


def learned(rows: Sequence[Row]) -> list[Row]:
    """Leave out methods that are right less than half as often as the best: confident of nothing, they err little."""
    part = parts_of(list(rows))[0]
    accuracies = [statistics.fmean(row.cells[part, "accuracy"]) for row in rows]
    return [row for row, own in zip(rows, accuracies, strict=True) if own >= max(accuracies) / 2]


def best_of(table: Table, column: Column) -> Row | None:
    """Find the best row of a table, see `best`; of several settings there is none."""
    return best(table.rows, table.part, column) if table.compared else None


def _is_better(row: Row, other: Row, part: str, key: str) -> bool:
    found = difference_of(row, other, part, key)
    return found is not None and found.shown and (found.mean > 0) == (key == "accuracy")


def shared_seeds(row: Row, other: Row) -> list[int]:
    """List the seeds that two rows have."""
    return sorted(set(row.seeds) & set(other.seeds))


def difference_of(row: Row, other: Row, part: str, key: str, factor: int = 1) -> Difference | None:
    """Compare two rows seed by seed, on the seeds that both have; None where there are none, or no values."""
    if not row.cells[part, key] or not other.cells[part, key]:
        return None
    mine, theirs = (dict(zip(one.seeds, one.cells[part, key], strict=True)) for one in (row, other))
    seeds = shared_seeds(row, other)
    return difference([factor * mine[s] for s in seeds], [factor * theirs[s] for s in seeds]) if seeds else None


def markdown(records: list[RunRecord]) -> str:
    """Write the tables in Markdown, in bold what `best` finds."""
    tables, lines = tables_of(records), []
    columns = columns_in(tables)
    for table in tables:
        heads = [for_markdown(table.title), *(column[0] for column in columns)]
        rows = [[for_markdown(row.method), *cells] for row, cells in cells_of(table, columns, "**{}**")]
        lines += [*markdown_table(heads, rows), ""]
    return "\n".join([*lines, caption_in(tables), ""])


def cells_of(table: Table, columns: Sequence[Column], bold: str) -> Iterator[tuple[Row, list[str]]]:
    """Write the cells of each row, with `bold` around what `best` finds."""
    winners = [best_of(table, column) for column in columns]
    for row in table.rows:
        texts = [row.text(table.part, column) for column in columns]
        yield row, [bold.format(t) if row is winner else t for t, winner in zip(texts, winners, strict=True)]


def before_and_after(record: RunRecord) -> list[RunRecord]:
    """Make of a fine-tuned run's record two: one for the checkpoint as it was, one for what became of it."""
    return [record.model_copy(update={"method": "checkpoint", "evaluation": record.before}), record]
