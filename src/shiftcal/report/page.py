"""The report of runs: tables, figures, and one self-contained page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from shiftcal._io import write_atomically
from shiftcal.records import RunRecord
from shiftcal.records.gallery import Sample, key_of
from shiftcal.report import cost, paired, published
from shiftcal.report.figures import reliability_figure, severity_figure
from shiftcal.report.labels import Setting, holdout_of, methods_of, settings_of
from shiftcal.report.table import Column, best_of, caption_in, columns_in, tables_of
from shiftcal.report.table import Table as Compared
from shiftcal.report.tables import write_tables
from shiftcal.report.web.data import DRAWN, page_data
from shiftcal.report.web.entries import Entry, counted, machine_of, of_run
from shiftcal.report.web.html import Cell, Page, Table, numbered, written
from shiftcal.report.web.metrics import METRICS
from shiftcal.report.web.words import Number, comparison_of

PAGE = "report.html"
Galleries = Mapping[str, Sequence[Sample]]


def write_report(
    directory: Path,
    records: list[RunRecord],
    title: str,
    left_out: Mapping[str, str] | None = None,
    against: str | None = None,
    galleries: Galleries | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """Write tables (see `tables.write_tables`), figures of a single setting, and report.html; returns the page's path.

    `left_out` names runs that have no record, with the reason of each; with `against`, differences to that method
    follow the tables; `galleries` has sample images of runs, see `galleries_of`; `notes` stand below the tables.
    """
    settings = settings_of(records)
    _write_figures(directory, settings)
    write_tables(directory, records, against)
    page = directory / PAGE
    content = page_of(records, title, left_out or {}, against, galleries or {}, notes)
    write_atomically(page, written(content).encode())
    return page


def _write_figures(directory: Path, settings: Sequence[Setting]) -> None:
    for name in ("reliability.png", "severity.png"):  # of an earlier report
        (directory / name).unlink(missing_ok=True)
    if len(settings) > 1:
        return
    drawn = comparison_of(settings[0].records).telling(DRAWN)
    records = [record for record in settings[0].records if record.method in drawn]
    write_atomically(directory / "reliability.png", reliability_figure(records))
    if all(r.evaluation.shifts for r in records):
        write_atomically(directory / "severity.png", severity_figure(records))


def page_of(
    records: list[RunRecord],
    title: str,
    left_out: Mapping[str, str],
    against: str | None,
    galleries: Galleries,
    notes: Sequence[str] = (),
) -> Page:
    """Put the page of runs together."""
    settings, tables, beside = settings_of(records), tables_of(records), published.beside(records)
    captions = [paired.CAPTION] * bool(against) + [published.CAPTION] * bool(beside)
    return Page(
        title=title,
        subtitle=_subtitle(records),
        verdict=[sentence for setting in settings for sentence in _sentences(setting)],
        numbers=[number for setting in settings[:2] for number in _numbers(setting)],
        tables=[*_tables(tables), *_differences(records, against), *map(_published, beside), *_costs(records)],
        notes=[*notes, _SPREAD, caption_in(tables), *captions, f"Cost: {cost.CAPTION}"],
        left_out=left_out,
        data=page_data([entry for setting in settings for entry in _entries(setting, galleries)], _drawn(settings)),
    )


def _drawn(settings: Sequence[Setting]) -> list[str]:
    """Choose what the charts show at first, by the names of entries."""
    room = DRAWN if len(settings) == 1 else max(DRAWN // len(settings), 1)
    return [_name_of(m, setting) for setting in settings for m in comparison_of(setting.records).telling(room)]


def _name_of(method: str, setting: Setting) -> str:
    return f"{method} ({setting.title})" if setting.title else method


def _sentences(setting: Setting) -> list[str]:
    start = f"{setting.title}: " if setting.title else ""
    return [start + sentence for sentence in comparison_of(setting.records).sentences()]


def _numbers(setting: Setting) -> list[Number]:
    end = f", {setting.title}" if setting.title else ""
    return [Number(n.value, n.title + end, n.note) for n in comparison_of(setting.records).numbers()]


def _entries(setting: Setting, galleries: Galleries) -> list[Entry]:
    """List a setting's runs, method by method; where there are several settings, names tell them apart."""
    order = methods_of(setting.records)
    found = []
    for record in sorted(setting.records, key=lambda r: order.index(r.method)):
        name = _name_of(record.method, setting)
        samples = galleries.get(key_of(record.config), ())
        found.append(of_run(record.model_copy(update={"method": name}), samples))
    return found


def _subtitle(records: list[RunRecord]) -> str:
    """Say what was compared on which data: names, counts, date, device."""
    methods, seeds = {r.method for r in records}, {r.seed for r in records}
    data = _data_of(records)
    days = sorted({r.started[:10] for r in records if r.started})
    cells = {(_data_name(r), cell.shift, cell.severity) for r in records for cell in r.evaluation.shifts}
    kinds = len({(name, shift) for name, shift, _ in cells})
    words = [
        f"Recipe {', '.join(dict.fromkeys(r.recipe for r in records))}",
        f"{len(methods)} method{'s' * (len(methods) > 1)} over {len(seeds)} seed{'s' * (len(seeds) > 1)}",
        *data,
        f"{len(cells)} shifted test sets of {kinds} kind{'s' * (kinds > 1)}" if cells else "no shifted test sets",
        " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
        "; ".join(dict.fromkeys(machine_of(r, r.device) for r in records)),
    ]
    return " · ".join(word for word in words if word)


def _data_of(records: list[RunRecord]) -> list[str]:
    """Name the data and the domain held out, with counts where some run has them: an earlier version did not say."""
    counts: dict[str, dict[str, None]] = {}
    for record in records:
        held_out = holdout_of(record)
        name = _data_name(record) + (f" without {held_out}" if held_out else "")
        known = counts.setdefault(name, {})
        known |= {f" ({counted(record.data.counts)})": None} if record.data else {}
    return [f"{name}{own}" for name, known in counts.items() for own in known or {"": None}]


def _data_name(record: RunRecord) -> str:
    return record.data.name if record.data else str(record.config["data"].get("name", "unnamed data"))


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


def _heads(columns: Sequence[Column]) -> list[tuple[str, str, str]]:
    return [_METHOD, *((column[0], *words_of_column(column[1])) for column in columns)]


def _tables(tables: list[Compared]) -> list[Table]:
    columns = columns_in(tables)
    heads = _heads(columns)
    found = []
    for table in tables:
        bests = [best_of(table, column) for column in columns]
        cells = []
        for row in table.rows:
            values = [row.cells.get((table.part, column[1])) for column in columns]
            means = [statistics.fmean(some) if some else None for some in values]
            texts = [row.text(table.part, column) for column in columns]
            own = [Cell(t, v, first is row) for t, v, first in zip(texts, means, bests, strict=True)]
            cells.append([Cell(row.method), *own])
        found.append(Table(table.title, heads, cells))
    return found


def _differences(records: list[RunRecord], against: str | None) -> list[Table]:
    if against is None:
        return []
    heads = _heads(columns_in(tables_of(records)))
    return [
        Table(
            title,
            heads,
            [[Cell(row[0]), *(numbered(text.strip("*"), best="**" in text) for text in row[1:])] for row in rows],
        )
        for title, rows in paired.differences(records, against).items()
    ]


def _published(theirs: published.Beside) -> Table:
    heads = [_METHOD, *((head, "", "low") for head in theirs.heads)]
    return Table(theirs.title, heads, [[Cell(row[0]), *map(numbered, row[1:])] for row in theirs.rows])


_SPREAD = "± is the standard deviation over seeds, unless it says interval."


def _costs(records: list[RunRecord]) -> list[Table]:
    words = ("Seconds of training an epoch.", "Seconds of training and evaluation.", "Training seconds, ce being 1.")
    heads = [_METHOD, *zip(cost.HEADS, (*words, "Images a second.", "Where it ran."), ("low",) * 5, strict=True)]
    return [
        Table(f"{title}: cost" if title else "Cost", heads, [[Cell(row[0]), *map(numbered, row[1:])] for row in rows])
        for title, rows in cost.rows_of(records)
    ]
