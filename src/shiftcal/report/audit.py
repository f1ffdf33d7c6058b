"""An audit as a table and as a self-contained page, from its record alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shiftcal._errors import ParameterError, wrong
from shiftcal._io import write_atomically
from shiftcal.auditing.verdict import named_shifts, percent
from shiftcal.records.audit import AuditCell, AuditMean, AuditRecord, read_audit
from shiftcal.records.gallery import Sample, read_gallery
from shiftcal.report.terminal import console_of, fitting, tell_left_out
from shiftcal.report.text import for_markdown, for_terminal, markdown_table
from shiftcal.report.web.data import DRAWN, page_data
from shiftcal.report.web.entries import counted, machine_of, of_audit
from shiftcal.report.web.html import Page, Table, numbered, written
from shiftcal.report.web.words import Number

PAGE, REPORT = "audit.html", "report.html"
_HEAD = (
    "",
    "n",
    "Acc.",
    "says",
    "ECE",
    "95 %",
    "floor",
    "ACE",
    "CECE",
    "smooth",
    "NLL",
    "Brier",
    "AURC",
    "90 %",
    "APS",
)
_NARROW = ("", "n", "Acc.", "says", "ECE", "95 %", "floor", "90 %", "APS")  # what a terminal shows, as far as it fits
_NAMED = 12  # shifts with a row of their own
_NOTE = (
    "n: images. Acc.: accuracy. says: mean confidence. ECE with its 95 % interval (metrics.ece_interval); floor: the "
    "ECE that a calibrated model with these confidences shows by chance at this n. ACE, CECE, smooth: adaptive, "
    "classwise and smooth ECE. NLL in nats. Brier: sum over classes. AURC: area under the risk–coverage curve. 90 %: "
    "accuracy of the 90 % most confident images. APS: coverage and mean size of conformal sets made for 90 %. All but "
    "NLL, Brier and sizes in %."
)


def rows_of(record: AuditRecord) -> list[tuple[str, AuditCell | AuditMean, int | None]]:
    """List what the table shows: clean, the mean over shifts, shifts that are no corruptions, the five worst others."""
    rows: list[tuple[str, AuditCell | AuditMean, int | None]] = [("clean", record.clean, record.clean.n)]
    if record.shifted is not None:
        rows.append((f"mean of {len(record.shifts)} shifted set{'s' * (len(record.shifts) > 1)}", record.shifted, None))
    named = named_shifts(record.shifts)[:_NAMED]
    worst = sorted((cell for cell in record.shifts if cell not in named), key=lambda cell: -cell.ece)[:5]
    return rows + [(label(cell), cell, cell.n) for cell in (*named, *worst)]


def label(cell: AuditCell) -> str:
    """Name a test set."""
    name = str(cell.shift).replace("_", " ") if cell.shift else "clean"
    return f"{name} {cell.severity}" if cell.severity else name


def _texts(name: str, cell: AuditCell | AuditMean, n: int | None) -> list[str]:
    aps = cell.sets.get("aps")
    return [
        name,
        "" if n is None else str(n),
        f"{100 * cell.accuracy:.1f}",
        f"{100 * cell.confidence:.1f}",
        f"{100 * cell.ece:.2f}",
        f"{100 * cell.ece_low:.2f}–{100 * cell.ece_high:.2f}",
        f"{100 * cell.noise_floor:.2f}",
        *(_hundred(value) for value in (cell.adaptive_ece, cell.classwise_ece, cell.smooth_ece)),
        f"{cell.nll:.3f}",
        "–" if cell.brier is None else f"{cell.brier:.3f}",
        f"{100 * cell.aurc:.2f}",
        f"{100 * cell.accuracy_at['90']:.1f}" if "90" in cell.accuracy_at else "–",
        "–" if aps is None else f"{100 * aps.coverage:.1f} · {aps.size:.2f}",
    ]


def _hundred(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def _calibrators(record: AuditRecord) -> list[list[str]]:
    """List what was tried: ECE before, and after each calibrator, clean and under shift."""
    under = record.shifted
    rows = [["none", _hundred(record.clean.ece), _hundred(under.ece if under else None), ""]]
    for name, tried in record.calibrators.items():
        note = tried.reason or (f"fitted on {tried.fitted_on}" if tried.fitted_on else "")
        note = f"T = {tried.temperature:.2f}, {note}" if tried.temperature else note
        clean, shifted = (m.ece if m is not None else None for m in (tried.clean, tried.shifted))
        best = " (best)" if name == record.mended_by else ""
        rows.append([f"{name}{best}", _hundred(clean), _hundred(shifted), note])
    return rows


def markdown(record: AuditRecord) -> str:
    """Write the audit in Markdown: verdict, test sets, calibrators."""
    lines = [*(f"- {for_markdown(sentence)}" for sentence in record.verdict), ""]
    lines += [f"> {for_markdown(warning)}" for warning in record.warnings] + ([""] if record.warnings else [])
    lines += markdown_table(_HEAD, [[*map(for_markdown, _texts(*row))] for row in rows_of(record)])
    lines += ["", "| calibrator | clean ECE | shifted ECE | |", "|---|---:|---:|---|"]
    lines += ["| " + " | ".join(for_markdown(text) for text in row) + " |" for row in _calibrators(record)]
    return "\n".join([*lines, "", _NOTE, ""])


def print_audit(record: AuditRecord) -> None:
    """Print the audit on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    console = console_of()
    shown = [k for k, name in enumerate(_HEAD) if name in _NARROW]

    def table_of(count: int) -> Grid:
        table = Grid(box=SIMPLE_HEAD, padding=(0, 1))
        for k in shown[:count]:
            table.add_column(_HEAD[k], justify="right" if k else "left", no_wrap=True)
        for row in rows_of(record):
            texts = _texts(*row)
            table.add_row(*(for_terminal(texts[k]) for k in shown[:count]))
        return table

    count = fitting(console, len(shown), table_of)
    console.print(table_of(count))
    tell_left_out(console, [_HEAD[k] for k in shown[count:]])
    tried = Grid(box=SIMPLE_HEAD, padding=(0, 1))
    for name, side in (("calibrator", "left"), ("clean ECE", "right"), ("shifted ECE", "right"), ("", "left")):
        tried.add_column(name, justify=side)  # type: ignore[arg-type]
    for texts in _calibrators(record):
        tried.add_row(*map(for_terminal, texts))
    console.print(tried)
    for warning in record.warnings:
        console.print(f"Note: {for_terminal(warning)}", style="yellow")
    for sentence in record.verdict:
        console.print(for_terminal(sentence), style="bold")


def write_audit_page(out: Path, record: AuditRecord) -> Path:
    """Write the page of an audit into its directory, with the sample images that are there; returns its path."""
    page = out / PAGE
    left_out: dict[str, str] = {}
    write_atomically(page, written(page_of([record], [_samples(out, left_out)], left_out)).encode())
    return page


def write_audit_report(out: Path, places: Sequence[Path]) -> Path:
    """Write one page and one text of audits, each the file or the directory that holds it; returns the page's path."""
    audits, galleries, left_out = [], [], {}
    for place in places:
        try:
            audits.append(read_audit(place))
        except ParameterError as error:
            left_out[str(place)] = str(error.found)
            continue
        galleries.append(_samples(place, left_out))
    if not audits:
        raise wrong("audit", "at least one that can be read", "; ".join(left_out.values()))
    text = "\n".join(f"## {for_markdown(record.model.name)}\n\n{markdown(record)}" for record in audits)
    write_atomically(out / "table.md", text.encode())
    page = out / REPORT
    write_atomically(page, written(page_of(audits, galleries, left_out)).encode())
    return page


def _samples(place: Path, left_out: dict[str, str]) -> tuple[Sample, ...]:
    folder = place if place.is_dir() else place.parent
    try:
        return read_gallery(folder)
    except ParameterError as error:
        left_out[f"images of {folder}"] = str(error.found)
        return ()


def page_of(
    records: Sequence[AuditRecord],
    galleries: Sequence[Sequence[Sample]] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> Page:
    """Put the page of audits together."""
    samples = galleries or [()] * len(records)
    named = [r.model_copy(update={"model": r.model.model_copy(update={"name": n})}) for r, n in _named(records)]
    first = records[0]
    title = f"Audit of {first.model.name}" if len(records) == 1 else f"Audits of {len(records)} models"
    return Page(
        title=title,
        subtitle=" · ".join(dict.fromkeys(map(_subtitle, records))),
        verdict=first.verdict if len(records) == 1 else [f"{r.model.name}: {s}" for r in named for s in r.verdict],
        numbers=[number for record in named[:3] for number in _numbers(record)],
        warnings=list(dict.fromkeys(warning for record in records for warning in record.warnings)),
        tables=_tables(named),
        notes=[_NOTE],
        left_out=left_out or {},
        data=page_data(
            [of_audit(r, s) for r, s in zip(named, samples, strict=True)], [r.model.name for r in named[:DRAWN]]
        ),
    )


def _named(records: Sequence[AuditRecord]) -> list[tuple[AuditRecord, str]]:
    """Give each audit a name of its own."""
    names = [record.model.name for record in records]
    return [
        (r, n if names.count(n) == 1 else f"{n} ({k})") for k, (r, n) in enumerate(zip(records, names, strict=True), 1)
    ]


def _subtitle(record: AuditRecord) -> str:
    day = (record.started or "")[:10]
    machine = machine_of(record, record.device)
    shifts = f"{len(record.shifts)} shifted test sets" if record.shifts else "no shifted test sets"
    words = (record.model.kind, f"{record.data.name} ({counted(record.data.counts)})", shifts, day, machine)
    return " · ".join(word for word in words if word)


def _numbers(record: AuditRecord) -> list[Number]:
    cells = [("ECE clean", record.clean), ("ECE under shift", record.shifted)]
    return [
        Number(percent(cell.ece), f"{title}, {record.model.name}", _interval(cell))
        for title, cell in cells
        if cell is not None
    ]


def _interval(cell: AuditCell | AuditMean) -> str:
    return f"{percent(cell.ece_low)} to {percent(cell.ece_high)} (95 %); chance alone: {percent(cell.noise_floor)}"


_WORDS = {
    "": "The test set.",
    "n": "Number of images.",
    "Acc.": "Accuracy in %.",
    "says": "Mean confidence in %.",
    "ECE": "Expected calibration error in %.",
    "95 %": "Its 95 % interval: true errors that could have been seen so, metrics.ece_interval.",
    "floor": "The ECE in % that chance gives a calibrated model with these confidences at this n.",
    "ACE": "Adaptive calibration error in %: over classes, with bins that hold equally many.",
    "CECE": "Classwise ECE in %.",
    "smooth": "Smooth ECE in %: without bins.",
    "NLL": "Negative log-likelihood in nats.",
    "Brier": "Squared distance of probabilities and truth, summed over classes.",
    "AURC": "Area under the risk–coverage curve in %.",
    "90 %": "Accuracy in % of the 90 % most confident images.",
    "APS": "Coverage in % and mean size of conformal sets made for 90 %.",
}


def _tables(records: Sequence[AuditRecord]) -> list[Table]:
    several = len(records) > 1
    heads = [(name or "test set", _WORDS[name], "high" if name in ("Acc.", "90 %") else "low") for name in _HEAD]
    rows = []
    for record in records:
        for name, cell, n in rows_of(record)[: 2 if several else None]:
            start = f"{record.model.name}, {name}" if several else name
            rows.append([numbered(text) for text in _texts(start, cell, n)])
    title = "Test sets: clean, the mean under shift" + ("" if several else ", named shifts, the five worst others")
    found = [Table(title, heads, rows)]
    tried = [("calibrator", "", "low"), ("clean ECE", "", "low"), ("shifted ECE", "", "low"), ("how", "", "low")]
    for record in records:
        title = f"What would mend {record.model.name}" if several else "What would mend it"
        found.append(Table(title, tried, [[numbered(text) for text in row] for row in _calibrators(record)]))
    return found
