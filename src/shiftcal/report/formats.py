"""Tables for papers and for other programs: LaTeX, CSV, and the error by corruption."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterator

from shiftcal.records import METRICS, Cell, RunRecord
from shiftcal.report.table import best, caption_of, columns_of, parts_of, rows_of
from shiftcal.report.text import for_latex, for_markdown, plain

_SCALED = ("clean/ece", "shift_aware/ece")


def latex(records: list[RunRecord]) -> str:
    """Write the table in LaTeX (package booktabs), the best of each column in bold."""
    rows = rows_of(records)
    columns = columns_of(rows)
    lines = [rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    for number, part in enumerate(parts_of(rows)):
        lines += [r"\midrule"] * bool(number)
        heads = [for_latex(part), *(for_latex(column[0]) for column in columns)]
        lines += [" & ".join(heads) + r" \\", r"\midrule"]
        for row in rows:
            texts = [for_latex(row.text(part, column)) for column in columns]
            bold = [
                rf"\textbf{{{t}}}" if best(rows, part, c) is row else t for t, c in zip(texts, columns, strict=True)
            ]
            lines.append(" & ".join([for_latex(row.method), *bold]) + r" \\")
    caption = for_latex(caption_of(rows))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", f"% {caption}", ""])


def values(records: list[RunRecord]) -> str:
    """Write every number as CSV: a line for each run and test set, fractions and nats as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "seed", "holdout", "weights", "set", "severity", "n", *METRICS, *_SCALED])
    for record in records:
        start = [plain(record.method), record.seed, record.config["data"].get("holdout") or "", record.weights.kept]
        for name, cell in _cells(record):
            found = [cell.value(key) for key in (*METRICS, *_SCALED)]
            writer.writerow(
                [*start, plain(name), cell.severity or "", cell.n or "", *("" if v is None else v for v in found)]
            )
    return out.getvalue()


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
    methods = [row.method for row in rows_of(records)]
    shifts = list(dict.fromkeys(str(cell.shift) for record in records for cell in record.evaluation.shifts))
    if not shifts:
        return ""
    lines = ["| ECE in % | " + " | ".join(map(for_markdown, methods)) + " |", "|---|" + "---:|" * len(methods)]
    for shift in shifts:
        texts = [_mean_error(records, method, shift) for method in methods]
        lines.append(f"| {for_markdown(shift.replace('_', ' '))} | " + " | ".join(texts) + " |")
    return "\n".join([*lines, "", "Mean over severities, mean and standard deviation over seeds.", ""])


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
