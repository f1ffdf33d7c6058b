"""Paired differences: what a method changes against another one, seed by seed."""

from __future__ import annotations

from shiftcal._errors import unknown
from shiftcal.records import RunRecord
from shiftcal.report.intervals import difference
from shiftcal.report.labels import Setting, methods_of, settings_of
from shiftcal.report.table import Column, Row, columns_in, parts_of, rows_of, tables_of
from shiftcal.report.text import for_markdown

CAPTION = "Mean difference by seed with its 95 % interval (Student's t); in bold where the interval leaves out 0."


def differences(records: list[RunRecord], against: str) -> dict[str, list[list[str]]]:
    """List tables by their title: a row for each other method, with a text for each column.

    Only seeds that both methods have are compared, and only runs of the same setting.
    """
    settings = settings_of(records)
    methods = {record.method for setting in settings for record in setting.records}
    if against not in methods:
        raise unknown("against", against, sorted(methods))
    columns = columns_in(tables_of(records))
    tables: dict[str, list[list[str]]] = {}
    for setting in settings:
        tables |= _differences(setting, against, columns)
    return tables


def _differences(setting: Setting, against: str, columns: list[Column]) -> dict[str, list[list[str]]]:
    records, start = setting.records, f"{setting.title}: " if setting.title else ""
    tables: dict[str, list[list[str]]] = {}
    for method in [method for method in methods_of(records) if method != against]:
        mine, theirs = (_of(records, name) for name in (method, against))
        seeds = sorted({r.seed for r in mine} & {r.seed for r in theirs})
        if not seeds:
            continue
        row, base = (rows_of([r for r in some if r.seed in seeds])[0] for some in (mine, theirs))
        for part in parts_of([row, base]):
            title = f"{start}{part}: difference to {against}"
            texts = [_text(row, base, part, column) for column in columns]
            tables.setdefault(title, []).append([f"{method} ({len(seeds)} seed{'s' * (len(seeds) > 1)})", *texts])
    return tables


def _of(records: list[RunRecord], method: str) -> list[RunRecord]:
    return sorted((r for r in records if r.method == method), key=lambda r: r.seed)


def _text(row: Row, base: Row, part: str, column: Column) -> str:
    _, key, factor, decimals = column
    values, others = ([factor * v for v in one.cells[part, key]] for one in (row, base))
    if not values or not others:
        return "–"
    found = difference(values, others)
    width = "" if found.half_width is None else f" ± {found.half_width:.{decimals}f}"
    text = f"{found.mean:+.{decimals}f}{width}".replace("-", "−")
    return f"**{text}**" if found.shown else text


def markdown(records: list[RunRecord], against: str) -> str:
    """Write the tables in Markdown."""
    heads = [column[0] for column in columns_in(tables_of(records))]
    lines = []
    for title, rows in differences(records, against).items():
        lines += [f"| {for_markdown(title)} | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
        lines += [f"| {for_markdown(name)} | " + " | ".join(cells) + " |" for name, *cells in rows]
        lines.append("")
    return "\n".join([*lines, CAPTION, ""])
