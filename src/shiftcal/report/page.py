"""One self-contained HTML page that shows a directory of runs."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from pathlib import Path

from shiftcal._io import write_atomically
from shiftcal._progress import duration
from shiftcal.records import RunRecord
from shiftcal.report import paired
from shiftcal.report.figures import reliability_figure, severity_figure
from shiftcal.report.labels import settings_of
from shiftcal.report.table import best, caption_in, columns_in, tables_of
from shiftcal.report.tables import write_tables

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 1rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .25rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.best { font-weight: 700; background: var(--soft); }
img { max-width: 100%; background: #fff; border-radius: 4px; }
figure { margin: 1.5rem 0; } figcaption, .note { color: #777; font-size: .9rem; }
.scroll { overflow-x: auto; }
"""


def write_report(
    directory: Path,
    records: list[RunRecord],
    title: str,
    left_out: Mapping[str, str] | None = None,
    against: str | None = None,
) -> Path:
    """Write tables (see `tables.write_tables`), figures of a single setting, and report.html; returns the page's path.

    `left_out` names runs that have no record, with the reason of each; with `against`, differences to that method
    follow the tables.
    """
    settings = settings_of(records)
    figures = [("reliability.png", reliability_figure, _RELIABILITY)] if len(settings) == 1 else []
    if figures and all(r.evaluation.shifts for r in records):
        figures.append(("severity.png", severity_figure, _SEVERITY))
    shown = []
    for name, draw, caption in figures:
        picture = draw(settings[0].records)
        write_atomically(directory / name, picture)
        shown.append((picture, caption))
    write_tables(directory, records, against)
    page = directory / "report.html"
    write_atomically(page, _page(records, title, shown, left_out or {}, against).encode())
    return page


_RELIABILITY = (
    "Reliability diagrams: what the predictions of a confidence bin claim, and how often they are right. Blue: both. "
    "Red: claimed but not so. Yellow: right more often than claimed. A calibrated model has neither; most samples are "
    "where the small grey bars are tall."
)
_SEVERITY = (
    "Expected calibration error by severity of the shift; severity 0 is the clean test set. Over several seeds: "
    "the mean, and for up to three methods the range."
)


def _page(
    records: list[RunRecord],
    title: str,
    figures: list[tuple[bytes, str]],
    left_out: Mapping[str, str],
    against: str | None,
) -> str:
    pictures = "".join(
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for data, caption in figures
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><h1>{html.escape(title)}</h1>"
        f'<p class="note">{html.escape(_summary(records))}</p>{_tables(records)}'
        f"{_differences(records, against)}{pictures}"
        f"<h2>Runs</h2>{_runs(records)}{_left_out(left_out)}</body></html>\n"
    )


def _left_out(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return ""
    items = "".join(f"<li>{html.escape(name)}: {html.escape(reason)}</li>" for name, reason in reasons.items())
    return f"<h2>Left out</h2><ul>{items}</ul>"


def _summary(records: list[RunRecord]) -> str:
    evaluation = records[0].evaluation
    shifts = len({cell.shift for cell in evaluation.shifts})
    seeds = len({r.seed for r in records})
    return (
        f"Recipe {records[0].recipe}, {seeds} seed{'s' if seeds > 1 else ''}. In distribution: the clean test set. "
        f"Under shift: {len(evaluation.shifts)} test sets, {shifts} kinds of shift at up to five severities. "
        "The temperature (TS) is fitted on the validation set."
    )


def _tables(records: list[RunRecord]) -> str:
    found, tables = tables_of(records), ""
    columns = columns_in(found)
    for table in found:
        rows, part = table.rows, table.part
        head = "".join(f"<th>{html.escape(column[0])}</th>" for column in columns)
        body = "".join(
            f"<tr><td>{html.escape(row.method)}</td>"
            + "".join(
                f"<td{' class=best' if best(rows, part, c) is row else ''}>{html.escape(row.text(part, c))}</td>"
                for c in columns
            )
            + "</tr>"
            for row in rows
        )
        tables += (
            f'<div class="scroll"><table><caption>{html.escape(table.title)}</caption>'
            f"<thead><tr><th>method</th>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
    return f'{tables}<p class="note">{html.escape(caption_in(found))}</p>'


def _differences(records: list[RunRecord], against: str | None) -> str:
    if against is None:
        return ""
    head = "".join(f"<th>{html.escape(column[0])}</th>" for column in columns_in(tables_of(records)))
    tables = "".join(
        f'<div class="scroll"><table><caption>{html.escape(title)}</caption>'
        f"<thead><tr><th>method</th>{head}</tr></thead>"
        f"<tbody>{''.join(_difference(row) for row in rows)}</tbody></table></div>"
        for title, rows in paired.differences(records, against).items()
    )
    return f'{tables}<p class="note">{html.escape(paired.CAPTION)}</p>'


def _difference(row: list[str]) -> str:
    cells = "".join(f"<td{' class=best' if '**' in c else ''}>{html.escape(c.strip('*'))}</td>" for c in row[1:])
    return f"<tr><td>{html.escape(row[0])}</td>{cells}</tr>"


def _runs(records: list[RunRecord]) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in ("method", "seed", "temperature", "training", "conflict rate", "machine")
    )
    body = ""
    for r in records:
        rates = [entry.conflict_rate for entry in r.history if entry.conflict_rate is not None]
        cells = (
            r.method,
            str(r.seed),
            f"{r.evaluation.temperatures['clean']:.2f}",
            duration(r.seconds.get("train", 0.0)),
            f"{sum(rates) / len(rates):.0%}" if rates else "–",
            f"{r.machine.get('processor', '?')}, {r.machine.get('cores', '?')} cores, torch {r.versions.get('torch')}",
        )
        body += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
