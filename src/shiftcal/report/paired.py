"""Paired differences: what a method changes against another one, seed by seed."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from shiftcal._errors import unknown
from shiftcal.records import RunRecord
from shiftcal.report.table import Row, columns_of, parts_of, rows_of
from shiftcal.report.text import for_markdown

CAPTION = "Mean difference by seed with its 95 % interval (Student's t); in bold where the interval leaves out 0."


@dataclass(frozen=True)
class Difference:
    """The mean of differences and half the width of its 95 % interval, which one seed alone does not give."""

    mean: float
    half_width: float | None

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def difference(values: list[float], against: list[float]) -> Difference:
    """Compare values pair by pair.

    Example:
        >>> difference([3.0, 5.0, 4.0], [1.0, 2.0, 3.0])  # doctest: +ELLIPSIS
        Difference(mean=2.0, half_width=2.4841...)
    """
    found = [value - other for value, other in zip(values, against, strict=True)]
    if len(found) == 1:
        return Difference(found[0], None)
    error = statistics.stdev(found) / math.sqrt(len(found))
    return Difference(statistics.mean(found), student_t(len(found) - 1) * error)


def student_t(degrees: int, level: float = 0.95) -> float:
    """Return the t that a share `level` of Student's distribution lies within, for whole degrees of freedom.

    Example:
        >>> round(student_t(2), 3)
        4.303
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, degrees) < level else (low, angle)
    return math.tan(low) * math.sqrt(degrees)


def _within(angle: float, degrees: int) -> float:
    """Return P(|T| < √ν·tan θ), a finite sum for whole ν (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    even = degrees % 2 == 0
    term = 1.0 if even else math.cos(angle)
    total = term if even or degrees > 1 else 0.0
    for k in range(1 if even else 2, degrees - 2, 2):
        term *= k / (k + 1) * math.cos(angle) ** 2
        total += term
    return math.sin(angle) * total if even else 2 / math.pi * (angle + math.sin(angle) * total)


def differences(records: list[RunRecord], against: str) -> dict[str, list[list[str]]]:
    """List tables by their title: a row for each other method, with a text for each column.

    Only seeds that both methods have are compared.
    """
    methods = {record.method for record in records}
    if against not in methods:
        raise unknown("against", against, sorted(methods))
    tables: dict[str, list[list[str]]] = {}
    for method in [row.method for row in rows_of(records) if row.method != against]:
        mine, theirs = (_of(records, name) for name in (method, against))
        seeds = sorted({r.seed for r in mine} & {r.seed for r in theirs})
        if not seeds:
            continue
        row, base = (rows_of([r for r in some if r.seed in seeds])[0] for some in (mine, theirs))
        for part in parts_of([row, base]):
            title = f"{part}: difference to {against}"
            texts = [_text(row, base, part, column) for column in columns_of(rows_of(records))]
            tables.setdefault(title, []).append([f"{method} ({len(seeds)} seed{'s' * (len(seeds) > 1)})", *texts])
    return tables


def _of(records: list[RunRecord], method: str) -> list[RunRecord]:
    return sorted((r for r in records if r.method == method), key=lambda r: r.seed)


def _text(row: Row, base: Row, part: str, column: tuple[str, str, int, int]) -> str:
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
    heads = [column[0] for column in columns_of(rows_of(records))]
    lines = []
    for title, rows in differences(records, against).items():
        lines += [f"| {for_markdown(title)} | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
        lines += [f"| {for_markdown(name)} | " + " | ".join(cells) + " |" for name, *cells in rows]
        lines.append("")
    return "\n".join([*lines, CAPTION, ""])
