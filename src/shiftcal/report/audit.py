"""An audit as a table and as a self-contained page, from its record alone."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from shiftcal._io import write_atomically
from shiftcal.auditing.verdict import is_shown, percent
from shiftcal.records import Bins
from shiftcal.records.audit import AuditCell, AuditMean, AuditRecord
from shiftcal.report.choose import pooled
from shiftcal.report.text import for_markdown, for_terminal

PAGE = "audit.html"
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
_NARROW = ("", "n", "Acc.", "says", "ECE", "95 %", "floor", "90 %", "APS")  # what fits a terminal
_NOTE = (
    "n: images. Acc.: accuracy. says: mean confidence. ECE with its 95 % interval (bootstrap); floor: the ECE that a "
    "calibrated model with these confidences shows by chance at this n. ACE, CECE, smooth: adaptive, classwise and "
    "smooth ECE. NLL in nats. Brier: sum over classes. AURC: area under the risk–coverage curve. 90 %: accuracy of the "
    "90 % most confident images. APS: coverage and mean size of conformal sets made for 90 %. All but NLL, Brier and "
    "sizes in %."
)


def rows_of(record: AuditRecord) -> list[tuple[str, AuditCell | AuditMean, int | None]]:
    """List what the table shows: clean, the mean over shifts, and each shift's mean over severities."""
    rows: list[tuple[str, AuditCell | AuditMean, int | None]] = [("clean", record.clean, record.clean.n)]
    if record.shifted is not None:
        rows.append((f"mean of {len(record.shifts)} shifted sets", record.shifted, None))
    worst = sorted(record.shifts, key=lambda cell: -cell.ece)[:5]
    return rows + [(label(cell), cell, cell.n) for cell in worst]


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
    lines += ["| " + " | ".join(_HEAD) + " |", "|---|" + "---:|" * (len(_HEAD) - 1)]
    lines += ["| " + " | ".join(for_markdown(text) for text in _texts(*row)) + " |" for row in rows_of(record)]
    lines += ["", "| calibrator | clean ECE | shifted ECE | |", "|---|---:|---:|---|"]
    lines += ["| " + " | ".join(for_markdown(text) for text in row) + " |" for row in _calibrators(record)]
    return "\n".join([*lines, "", _NOTE, ""])


def print_audit(record: AuditRecord) -> None:
    """Print the audit on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    shown = [
        k for k, name in enumerate(_HEAD) if name in ("", "n", "Acc.", "says", "ECE", "95 %", "floor", "90 %", "APS")
    ]
    for k in shown:
        table.add_column(_HEAD[k], justify="right" if k else "left", no_wrap=True)
    for row in rows_of(record):
        texts = _texts(*row)
        table.add_row(*(for_terminal(texts[k]) for k in shown))
    console.print(table)
    tried = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for name, side in (("calibrator", "left"), ("clean ECE", "right"), ("shifted ECE", "right"), ("", "left")):
        tried.add_column(name, justify=side)  # type: ignore[arg-type]
    for texts in _calibrators(record):
        tried.add_row(*map(for_terminal, texts))
    console.print(tried)
    for warning in record.warnings:
        console.print(f"Note: {for_terminal(warning)}", style="yellow")
    for sentence in record.verdict:
        console.print(for_terminal(sentence), style="bold")


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --over: #d1495b; --under: #e0a030; --ok: #4878a8; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { font-size: 1.15rem; border-left: 4px solid var(--ok); padding: .2rem 1rem; } .verdict p { margin: .4rem 0; }
.two { display: flex; gap: 2.5rem; flex-wrap: wrap; } .two b { font-size: 2.2rem; display: block; line-height: 1.2; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 1rem; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } .note { color: #777; font-size: .9rem; }
.scroll { overflow-x: auto; } .heat td { text-align: center; min-width: 3.2rem; }
.words td:last-child { text-align: left; white-space: normal; }
.pair { display: flex; flex-wrap: wrap; gap: 1.5rem; } svg text { fill: currentColor; font-size: 11px; }
@media print { body { max-width: none; } }
"""


def write_audit_page(out: Path, record: AuditRecord) -> Path:
    """Write the page; returns its path."""
    page = out / PAGE
    write_atomically(page, _page(record).encode())
    return page


def _page(record: AuditRecord) -> str:
    title = f"Audit: {record.model.name}"
    verdict = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in record.verdict)
    warnings = "".join(f'<p class="note">Note: {html.escape(text)}</p>' for text in record.warnings)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>'
        f'<h1>{html.escape(title)}</h1><p class="note">{html.escape(_subtitle(record))}</p>'
        f'<div class="verdict">{verdict}</div>{_numbers(record)}{warnings}'
        f"<h2>Test sets</h2>{_table(_HEAD, [_texts(*row) for row in rows_of(record)])}"
        f'<p class="note">{html.escape(_NOTE)} Below the means: the five sets with the largest ECE.</p>'
        f"<h2>What would mend it</h2>"
        f"{_table(('calibrator', 'clean ECE', 'shifted ECE', ''), _calibrators(record), 'words')}"
        f"{_diagrams(record)}{_heat(record)}<h2>What was audited</h2>{_details(record)}</body></html>\n"
    )


def _subtitle(record: AuditRecord) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in list(record.data.counts.items())[:6])
    day = (record.started or "")[:10]
    return f"{record.model.kind} on {record.data.name} ({counts} images), {len(record.shifts)} shifted sets. {day}"


def _numbers(record: AuditRecord) -> str:
    clean = f"<div><b>{percent(record.clean.ece)}</b>ECE, clean</div>"
    if record.shifted is None:
        return f'<div class="two">{clean}</div>'
    return f'<div class="two">{clean}<div><b>{percent(record.shifted.ece)}</b>ECE, mean under shift</div></div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "numbers") -> str:
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _diagrams(record: AuditRecord) -> str:
    shifted = [cell.bins for cell in record.shifts if cell.bins is not None]
    parts = [("clean", record.clean.bins), ("all shifted sets", pooled(shifted) if shifted else None)]
    drawn = "".join(_diagram(title, bins) for title, bins in parts if bins is not None)
    note = "Accuracy by confidence. Blue: both. Red: claimed but not so. Yellow: right more often than claimed."
    return f'<h2>Reliability</h2><div class="pair">{drawn}</div><p class="note">{note}</p>'


def _diagram(title: str, bins: Bins) -> str:
    """Draw a reliability diagram as SVG, 0..1 in both directions, with the share of images below."""
    width, total, marks = 240 / len(bins.count), sum(bins.count), ""
    for m, (n, says, right) in enumerate(zip(bins.count, bins.confidence, bins.accuracy, strict=True)):
        if not n:
            continue
        x, both, gap = 40 + m * width, min(says, right), abs(says - right)
        colour = "var(--over)" if says > right else "var(--under)"
        box = f'x="{x + 0.5:.1f}" width="{width - 1:.1f}"'
        marks += f"<g><title>{n} images say {percent(says)} and are right {percent(right)}</title>"
        marks += f'<rect {box} y="{20 + 240 * (1 - both):.1f}" height="{240 * both:.1f}" fill="var(--ok)"/>'
        marks += f'<rect {box} y="{20 + 240 * (1 - both - gap):.1f}" height="{240 * gap:.1f}" fill="{colour}"/>'
        marks += f'<rect {box} y="{310 - 36 * n / total:.1f}" height="{36 * n / total:.1f}" fill="#999"/></g>'
    axes = (
        '<path d="M40 260 L280 20" stroke="#888" stroke-dasharray="4 3"/>'
        '<path d="M40 20V260H280" stroke="#888" fill="none"/>'
    )
    words = '<text x="40" y="274">0</text><text x="268" y="274">1</text><text x="10" y="26">1</text>'
    name = f'<text x="40" y="14">{html.escape(title)}</text><text x="130" y="274">confidence</text>'
    said = f'role="img" aria-label="reliability diagram, {html.escape(title)}"'
    return f'<svg {said} width="300" height="316">{axes}{marks}{words}{name}</svg>'


def _heat(record: AuditRecord) -> str:
    """Show the ECE by shift and severity, darker where it is larger."""
    if not record.shifts:
        return ""
    severities = sorted({cell.severity or 0 for cell in record.shifts})
    rows = ""
    for shift in dict.fromkeys(cell.shift for cell in record.shifts):
        own = {cell.severity or 0: cell for cell in record.shifts if cell.shift == shift}
        cells = "".join(_heat_cell(own.get(severity)) for severity in severities)
        rows += f"<tr><td>{html.escape(str(shift).replace('_', ' '))}</td>{cells}</tr>"
    head = "".join(f"<th>{severity or ''}</th>" for severity in severities)
    return (
        '<h2>ECE by shift and severity</h2><div class="scroll"><table class="heat"><thead><tr><th></th>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _heat_cell(cell: AuditCell | None) -> str:
    if cell is None:
        return "<td></td>"
    colour = "209,73,91" if cell.gap > 0 else "224,160,48"
    words = f"says {percent(cell.confidence)}, right {percent(cell.accuracy)}, floor {percent(cell.noise_floor)}"
    shade = min(cell.ece / 0.3, 1) if is_shown(cell) else 0
    return f'<td style="background:rgba({colour},{shade:.2f})" title="{words}">{100 * cell.ece:.1f}</td>'


def _details(record: AuditRecord) -> str:
    rows = [
        ["model", f"{record.model.kind} {record.model.name}"],
        ["outputs", record.model.outputs + (f"; {record.model.restricted}" if record.model.restricted else "")],
        ["SHA-256", record.model.sha256 or "–"],
        ["preprocessing", ", ".join(f"{key} {value}" for key, value in record.data.preprocessing.items()) or "–"],
        ["corruptions", record.corruptions.constants or "–"],
        ["machine", f"{record.machine.get('processor', '?')}, torch {record.versions.get('torch', '?')}"],
        ["seconds", f"{record.seconds.get('audit', 0):.0f}"],
    ]
    return _table(("", ""), rows, "words")
