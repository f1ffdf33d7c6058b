"""The page itself: what can be read without a script, and the places that the script draws into."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from shiftcal.report.text import plain
from shiftcal.report.web.data import as_json
from shiftcal.report.web.words import Number

# Sections by id: the title in the navigation, the heading, and the places in it that the script draws into.
OVERVIEW = ("overview", "Accuracy and ECE", "Accuracy against calibration error", ("tradeoff",))
SECTIONS = (
    ("shifts", "Shifts", "Where it breaks", ("heat", "reliability")),
    ("curves", "Severity", "By severity", ("severity",)),
    ("spread", "Spread", "Spread over shifts", ("boxes",)),
    ("coverage", "Risk and coverage", "Risk and coverage", ("risk",)),
    ("classwise", "Classes", "By class", ("classes",)),
    ("samples", "Images", "Images", ("gallery",)),
    ("history", "Training", "Training", ("training",)),
    ("about", "Details", "Configuration, environment, data", ("details",)),
)
_ABOUT_TABLES = "Heads explain themselves when touched, and sort."


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, the number to sort by, and whether it is the best of its column."""

    text: str
    value: float | None = None
    best: bool = False


def numbered(text: str, best: bool = False) -> Cell:
    """Make a cell of a text, to be sorted by the number that it begins with, if it does."""
    start = text.replace("−", "-").replace("–", " ").split(" ")[0]
    try:
        return Cell(text, float(start), best)
    except ValueError:
        return Cell(text, best=best)


@dataclass(frozen=True)
class Table:
    """A table: its caption, its heads with an explanation and "low" or "high" each, and its rows."""

    caption: str
    heads: Sequence[tuple[str, str, str]]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Page:
    """What a page shows before anything is chosen.

    Attributes:
        title: Its heading.
        subtitle: What was compared on which data.
        verdict: The verdict, in sentences.
        numbers: The numbers that matter.
        warnings: What a reader must know.
        tables: Tables of all numbers.
        notes: Lines below the tables.
        left_out: What could not be read, with the reason of each.
        data: What the script draws from.
    """

    title: str
    subtitle: str
    verdict: Sequence[str]
    numbers: Sequence[Number]
    tables: Sequence[Table]
    data: Mapping[str, Any]
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def written(page: Page) -> str:
    """Write the page."""
    title = _escaped(page.title)
    parts = (OVERVIEW, ("table", "Table", "", ()), *SECTIONS)
    links = "".join(f'<a href="#{name}">{words}</a>' for name, words, _, _ in parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_asset('style.css')}</style></head><body>"
        f'<header><h1>{title}</h1><p class="note">{_escaped(page.subtitle)}</p>{_first_screen(page)}</header>'
        f'<nav aria-label="Sections">{links}</nav><main>{_section(OVERVIEW)}{_tables(page)}'
        f"{''.join(map(_section, SECTIONS))}{_left_out(page.left_out)}"
        "<noscript><p>The pictures are drawn by a script, which this browser does not run.</p></noscript>"
        f'</main><script type="application/json" id="data">{as_json(page.data)}</script>'
        f"<script>(() => {{\n'use strict';\n{_script()}}})();</script></body></html>\n"
    )


def _escaped(text: object) -> str:
    return html.escape(plain(text))


def _first_screen(page: Page) -> str:
    sentences = "".join(f"<p>{_escaped(sentence)}</p>" for sentence in page.verdict)
    numbers = "".join(
        f"<div><b>{_escaped(n.value)}</b>{_escaped(n.title)}<small>{_escaped(n.note)}</small></div>"
        for n in page.numbers
    )
    warnings = "".join(f'<p class="warning">{_escaped(warning)}</p>' for warning in page.warnings)
    return (
        f'<div class="first"><div class="numbers">{numbers}</div><div class="verdict">{sentences}</div></div>{warnings}'
    )


def _section(section: tuple[str, str, str, tuple[str, ...]]) -> str:
    name, _, heading, places = section
    inner = "".join(f'<div id="{place}"></div>' for place in places)
    inner = f'<div class="beside">{inner}</div>' if len(places) > 1 else inner
    return f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{heading}</h2>{inner}</section>'


def _tables(page: Page) -> str:
    notes = "".join(f'<p class="note">{_escaped(note)}</p>' for note in page.notes)
    return (
        '<section id="table" aria-labelledby="table-title"><h2 id="table-title">All numbers</h2>'
        f"{''.join(map(_table, page.tables))}"
        f'<p class="note explained" aria-live="polite">{_ABOUT_TABLES}</p>{notes}</section>'
    )


def _table(table: Table) -> str:
    words = [place > 0 and _is_text([row[place] for row in table.rows]) for place in range(len(table.heads))]
    heads = "".join(_head(*head, is_text) for head, is_text in zip(table.heads, words, strict=True))
    body = "".join("<tr>" + "".join(map(_cell, row, words)) + "</tr>" for row in table.rows)
    caption = _escaped(table.caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}"><table class="sortable">'
        f"<caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _is_text(column: Sequence[Cell]) -> bool:
    return all(cell.value is None and cell.text != "–" for cell in column)


def _head(title: str, words: str, better: str, is_text: bool) -> str:
    said = f'{_classes(text=is_text)} title="{_escaped(words)}" data-better="{better}"'
    return f'<th scope="col" aria-sort="none" {said}><button type="button">{_escaped(title)}</button></th>'


def _cell(cell: Cell, is_text: bool) -> str:
    classes = _classes(best=cell.best, text=is_text)
    if cell.text == "–":
        return f'<td{classes} data-value="">–</td>'
    if cell.value is None:
        return f"<td{classes}>{_escaped(cell.text)}</td>"
    return f'<td{classes} data-value="{cell.value:.6g}">{_escaped(cell.text)}</td>'


def _classes(**which: bool) -> str:
    named = " ".join(name for name, given in which.items() if given)
    return f' class="{named}"' if named else ""


def _left_out(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return ""
    items = "".join(f"<li>{_escaped(name)}: {_escaped(reason)}</li>" for name, reason in reasons.items())
    return (
        f'<section aria-labelledby="left-out"><h2 id="left-out">Left out: {len(reasons)}</h2><ul>{items}</ul></section>'
    )


@cache
def _asset(name: str) -> str:
    return resources.files("shiftcal.report.web").joinpath("assets", name).read_text("utf-8")


@cache
def _script() -> str:
    folder = resources.files("shiftcal.report.web").joinpath("assets")
    names = sorted(path.name for path in folder.iterdir() if path.name.endswith(".js"))
    return "".join(_asset(name) for name in names)
