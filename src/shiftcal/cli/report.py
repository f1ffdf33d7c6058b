"""`shiftcal report`: tables, figures and the page, from records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal.cli._shared import errors_in_one_line, write_and_print_report

HELP = "Write the table, the figures and report.html of the records in DIR, without training or evaluating."


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A finished run, a directory of runs, or a grid's records.jsonl.")
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; DIR by default.")] = None,
) -> None:
    """Write the report of records."""
    place = out or (directory.parent if directory.is_file() else directory)
    with errors_in_one_line(place):
        from shiftcal.records import load_finished

        records, left_out = load_finished(directory)
        place.mkdir(parents=True, exist_ok=True)
        write_and_print_report(records, place, f"shiftcal: {directory.resolve().name}", left_out)
