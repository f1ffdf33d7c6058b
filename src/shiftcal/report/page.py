"""The report of runs: tables, figures, and one self-contained page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from shiftcal._io import write_atomically
from shiftcal.records import RunRecord
from shiftcal.records.gallery import Sample
from shiftcal.report import formats, paired
from shiftcal.report.figures import reliability_figure, severity_figure
from shiftcal.report.table import best, caption_of, columns_of, markdown, parts_of, rows_of
from shiftcal.report.web.data import page_data
from shiftcal.report.web.entries import counted, machine_of, of_run
from shiftcal.report.web.html import Cell, Page, Table, written
from shiftcal.report.web.metrics import METRICS
from shiftcal.report.web.words import comparison_of

PAGE = "report.html"
_DRAWN = 12  # methods in a figure, which more would make unreadable; the page has all


def write_report(
    directory: Path,
    records: list[RunRecord],
    title: str,
    left_out: Mapping[str, str] | None = None,
    against: str | None = None,
    galleries: Mapping[str, Sequence[Sample]] | None = None,
) -> Path:
    """Write tables (table.md, table.tex, shifts.md, values.csv), figures and report.html; returns the page's path.

    `left_out` names runs that have no record, with the reason of each; with `against`, differences to that method
    follow the tables; `galleries` has sample images of a method.
    """
    figures = [("reliability.png", reliability_figure)]
    if all(r.evaluation.shifts for r in records):
        figures.append(("severity.png", severity_figure))
    drawn = {row.method for row in rows_of(records)[:_DRAWN]}
    for name, draw in figures:
        write_atomically(directory / name, draw([r for r in records if r.method in drawn]))
    write_atomically(directory / "table.md", all_tables(records, against).encode())
    write_atomically(directory / "table.tex", formats.latex(records).encode())
    write_atomically(directory / "values.csv", formats.values(records).encode())
    if any(r.evaluation.shifts for r in records):
        write_atomically(directory / "shifts.md", formats.by_shift(records).encode())
    page = directory / PAGE
    write_atomically(page, written(page_of(records, title, left_out or {}, against, galleries or {})).encode())
    return page


def all_tables(records: list[RunRecord], against: str | None = None) -> str:
    """Write the tables in Markdown, with the differences to a method if one is named."""
    return markdown(records) + (f"\n{paired.markdown(records, against)}" if against else "")


def page_of(
    records: list[RunRecord],
    title: str,
    left_out: Mapping[str, str],
    against: str | None,
    galleries: Mapping[str, Sequence[Sample]],
) -> Page:
    """Put the page of runs together."""
    rows = rows_of(records)
    order = [row.method for row in rows]
    ordered = sorted(records, key=lambda r: order.index(r.method))
    found = comparison_of(records)
    return Page(
        title=title,
        subtitle=_subtitle(records),
        verdict=found.sentences(),
        numbers=found.numbers(),
        tables=_tables(records) + _differences(records, against),
        notes=[caption_of(rows), _BOLD, *([paired.CAPTION] if against else [])],
        left_out=left_out,
        data=page_data([of_run(record, galleries.get(record.method, ())) for record in ordered]),
    )


_BOLD = "Mean and standard deviation over seeds; bold: the best, where 95 % intervals of the differences carry it."


def _subtitle(records: list[RunRecord]) -> str:
    """Say what was compared on which data: names, counts, date, device."""
    methods, seeds = {r.method for r in records}, {r.seed for r in records}
    data = dict.fromkeys(f"{r.data.name} ({counted(r.data.counts)})" if r.data else "" for r in records)
    days = sorted({r.started[:10] for r in records if r.started})
    evaluation = records[0].evaluation
    shifts = len({cell.shift for cell in evaluation.shifts})
    words = [
        f"Recipe {', '.join(dict.fromkeys(r.recipe for r in records))}",
        f"{len(methods)} method{'s' * (len(methods) > 1)} over {len(seeds)} seed{'s' * (len(seeds) > 1)}",
        *(name for name in data if name),
        f"{len(evaluation.shifts)} shifted test sets of {shifts} kinds"
        if evaluation.shifts
        else "no shifted test sets",
        " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
        "; ".join(dict.fromkeys(machine_of(r, r.device) for r in records)),
    ]
    return " · ".join(word for word in words if word)


def words_of_column(key: str) -> tuple[str, str]:
    """Explain a column of the table, and tell whether low or high values are better."""
    state, _, name = key.rpartition("/")
    metric = next(metric for metric in METRICS if metric.key == name)
    after = {
        "clean": " After a temperature fitted on clean validation images.",
        "shift_aware": " After a temperature fitted on clean and augmented validation images.",
    }
    return metric.words + after.get(state, ""), metric.better


_METHOD = ("method", "How the network was trained.", "low")


def _tables(records: list[RunRecord]) -> list[Table]:
    rows = rows_of(records)
    columns = columns_of(rows)
    heads = [_METHOD, *((column[0], *words_of_column(column[1])) for column in columns)]
    tables = []
    for part in parts_of(rows):
        bests = [best(rows, part, column) for column in columns]
        cells = []
        for row in rows:
            own = [row.cells[part, column[1]] for column in columns]
            texts = [row.text(part, column) for column in columns]
            values = [statistics.fmean(some) if some else None for some in own]
            found = [Cell(t, v, first is row) for t, v, first in zip(texts, values, bests, strict=True)]
            cells.append([Cell(row.method), *found])
        tables.append(Table(part, heads, cells))
    return tables


def _differences(records: list[RunRecord], against: str | None) -> list[Table]:
    if against is None:
        return []
    columns = columns_of(rows_of(records))
    heads = [_METHOD, *((column[0], *words_of_column(column[1])) for column in columns)]
    return [
        Table(title, heads, [[Cell(row[0]), *map(_difference, row[1:])] for row in rows])
        for title, rows in paired.differences(records, against).items()
    ]


def _difference(text: str) -> Cell:
    plain = text.strip("*")
    number = plain.partition(" ")[0].replace("−", "-")
    return Cell(plain, None if plain == "–" else float(number), best="**" in text)
