"""Tables for papers and for other programs: LaTeX, CSV, and the error by corruption."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Iterator

from shiftcal.records import METRICS, Cell, RunRecord
from shiftcal.report.labels import holdout_of, labelled, methods_of, settings_of
from shiftcal.report.table import WIDE, Row, caption_in, cells_of, columns_in, tables_of
from shiftcal.report.text import for_latex, for_markdown, markdown_table, plain

_SCALED = tuple(
    f"{name}/{key}" for name in ("clean", "shift_aware") for key in ("ece", "classwise_ece", "adaptive_ece")
)
_BY_SHIFT = "Mean over severities, mean and standard deviation over seeds."


def latex(records: list[RunRecord]) -> str:
    """Write the tables in LaTeX (package booktabs), in bold what `table.best` finds."""
    tables = tables_of(records)
    columns = columns_in(tables, WIDE)
    parts = [
        (table.title, [column[0] for column in columns], list(_latex_rows(cells_of(table, columns, "\0{}\0"))))
        for table in tables
    ]
    return tabular(parts, caption_in(tables))


def _latex_rows(rows: Iterable[tuple[Row, list[str]]]) -> Iterator[list[str]]:
    """Escape cells, with what is between zeros in bold."""
    for row, cells in rows:
        texts = [for_latex(cell) for cell in cells]
        bold = [rf"\textbf{{{text}}}" if "\0" in cell else text for text, cell in zip(texts, cells, strict=True)]
        yield [for_latex(row.method), *bold]


def tabular(parts: list[tuple[str, list[str], list[list[str]]]], caption: str) -> str:
    """Write parts below one another in LaTeX: each has a title, heads, and rows of cells that are LaTeX already."""
    lines = [rf"\begin{{tabular}}{{l{'r' * max(len(heads) for _, heads, _ in parts)}}}", r"\toprule"]
    for number, (title, heads, rows) in enumerate(parts):
        lines += [r"\midrule"] * bool(number)
        lines += [" & ".join(map(for_latex, [title, *heads])) + r" \\", r"\midrule"]
        lines += [" & ".join(row) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", f"% {for_latex(caption)}", ""])


def values(records: list[RunRecord]) -> str:
    """Write every number as CSV: a line for each run and test set, fractions and nats as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    about = ("method", "data", "model", "seed", "holdout", "weights", "set", "severity", "n")
    writer.writerow([*about, *METRICS, *_SCALED])
    for record in labelled(records):
        start = [plain(record.method), *_setting(record), record.weights.kept]
        for name, cell in _cells(record):
            found = [cell.value(key) for key in (*METRICS, *_SCALED)]
            writer.writerow(
                [*start, plain(name), cell.severity or "", cell.n or "", *("" if v is None else v for v in found)]
            )
    return out.getvalue()


def _setting(record: RunRecord) -> list[str | int]:
    train = record.config.get("train")
    model = train.get("model") if isinstance(train, dict) else None
    return [plain(record.config["data"].get("name") or ""), plain(model or ""), record.seed, holdout_of(record) or ""]


def _cells(record: RunRecord) -> Iterator[tuple[str, Cell]]:
    evaluation = record.evaluation
    yield "validation", evaluation.validation
    yield "clean", evaluation.clean
    for name, cell in evaluation.other_tests.items():
        yield name, cell
    for cell in evaluation.shifts:
        yield str(cell.shift), cell


def by_shift(records: list[RunRecord]) -> str:
    """Write the ECE by shift in Markdown: the mean over its severities and over seeds, for each method."""
    lines: list[str] = []
    for title, methods, rows in _by_shift(records):
        named = [[for_markdown(shift), *texts] for shift, *texts in rows]
        lines += [*markdown_table([*map(for_markdown, [title, *methods])], named), ""]
    return "\n".join([*lines, _BY_SHIFT, ""]) if lines else ""


def by_shift_latex(records: list[RunRecord]) -> str:
    """Write the ECE by shift in LaTeX."""
    parts = [(title, heads, [[*map(for_latex, row)] for row in rows]) for title, heads, rows in _by_shift(records)]
    return tabular(parts, _BY_SHIFT) if parts else ""


def _by_shift(records: list[RunRecord]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """List for each setting its title, its methods, and a row for each shift."""
    for setting in settings_of(records):
        own, methods = setting.records, methods_of(setting.records)
        shifts = list(dict.fromkeys(str(cell.shift) for record in own for cell in record.evaluation.shifts))
        title = f"{setting.title}: ECE in %" if setting.title else "ECE in %"
        rows = [[s.replace("_", " "), *(_mean_error(own, method, s) for method in methods)] for s in shifts]
        if rows:
            yield title, methods, rows


def _mean_error(records: list[RunRecord], method: str, shift: str) -> str:
    """Write a method's mean error under a shift, with its deviation over seeds."""
    by_seed: dict[int, list[float]] = {}
    for record in records:
        if record.method == method:
            own = [100 * cell.ece for cell in record.evaluation.shifts if str(cell.shift) == shift]
            by_seed.setdefault(record.seed, []).extend(own)
    means = [statistics.fmean(errors) for errors in by_seed.values() if errors]
    if not means:
        return "–"
    deviation = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
    return f"{statistics.fmean(means):.1f}{deviation}"
