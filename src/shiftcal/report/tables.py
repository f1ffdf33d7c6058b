"""All tables of a report, in one text and in files."""

from __future__ import annotations

from pathlib import Path

from shiftcal._io import write_atomically
from shiftcal.records import RunRecord
from shiftcal.report import cost, formats, paired, published, table


def all_tables(records: list[RunRecord], against: str | None = None) -> str:
    """Write the tables in Markdown: ours, differences to a method if one is named, and the paper's beside ours."""
    texts = [table.markdown(records), paired.markdown(records, against) if against else "", published.markdown(records)]
    return "\n".join(text for text in texts if text)


def write_tables(directory: Path, records: list[RunRecord], against: str | None = None) -> None:
    """Write table.md, table.tex, values.csv, cost.md and, where there are shifts, shifts.md and shifts.tex."""
    costs = cost.markdown(records)
    files = {
        "table.md": f"{all_tables(records, against)}\n{costs}",
        "table.tex": "\n".join(text for text in (formats.latex(records), published.latex(records)) if text),
        "values.csv": formats.values(records),
        "cost.md": costs,
        "shifts.md": formats.by_shift(records),
        "shifts.tex": formats.by_shift_latex(records),
    }
    for name, text in files.items():
        if text:
            write_atomically(directory / name, text.encode())
        else:
            (directory / name).unlink(missing_ok=True)  # of an earlier report
