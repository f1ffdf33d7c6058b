"""Paired differences: what a method changes against another one, seed by seed."""

from __future__ import annotations

from shiftcal._errors import unknown
from shiftcal.records import RunRecord
from shiftcal.report.labels import Setting, settings_of
from shiftcal.report.table import Column, Row, columns_in, difference_of, parts_of, rows_of, shared_seeds, tables_of
from shiftcal.report.text import for_markdown, markdown_table

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
    start = f"{setting.title}: " if setting.title else ""
    rows = {row.method: row for row in rows_of(setting.records)}
    if (base := rows.pop(against, None)) is None:
        return {}
    tables: dict[str, list[list[str]]] = {}
    for row in rows.values():
        if not (seeds := shared_seeds(row, base)):
            continue
        # Of these seeds alone: another one may lack a metric.
        shared = [r for r in setting.records if r.method in (row.method, against) and r.seed in seeds]
        pair = {one.method: one for one in rows_of(shared)}
        for part in parts_of(list(pair.values())):
            title = f"{start}{part}: difference to {against}"
            texts = [_text(pair[row.method], pair[against], part, column) for column in columns]
            tables.setdefault(title, []).append([f"{row.method} ({len(seeds)} seed{'s' * (len(seeds) > 1)})", *texts])
    return tables


def _text(row: Row, base: Row, part: str, column: Column) -> str:
    _, key, factor, decimals = column
    if (found := difference_of(row, base, part, key, factor)) is None:
        return "–"
    width = "" if found.half_width is None else f" ± {found.half_width:.{decimals}f}"
    text = f"{found.mean:+.{decimals}f}{width}".replace("-", "−")
    return f"**{text}**" if found.shown else text


def markdown(records: list[RunRecord], against: str) -> str:
    """Write the tables in Markdown."""
    heads = [column[0] for column in columns_in(tables_of(records))]
    lines = []
    for title, rows in differences(records, against).items():
        named = [[for_markdown(name), *cells] for name, *cells in rows]
        lines += [*markdown_table([for_markdown(title), *heads], named), ""]
    return "\n".join([*lines, CAPTION, ""])
