"""`shiftcal report`: tables, figures and the page, from records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal.cli._shared import errors_in_one_line, words_of, write_and_print_report

HELP = "Write the table, the figures and report.html of the records in DIR, without training or evaluating."


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A finished run, a directory of runs, or a grid's records.jsonl.")
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; DIR by default.")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Also tabulate differences to this method, seed by seed.")
    ] = None,
    without: Annotated[str, typer.Option(metavar="SHIFT,…", help="Leave shifts out of the means.")] = "",
    weights: Annotated[
        str | None,
        typer.Option(help="Show other weights that the runs evaluated (evaluation.also): last, average, best_ece, …"),
    ] = None,
) -> None:
    """Write the report of records."""
    place = out or (directory.parent if directory.is_file() else directory)
    with errors_in_one_line(place):
        from shiftcal.records import load_finished
        from shiftcal.report.choose import with_weights, without_shifts

        records, left_out = load_finished(directory)
        records = with_weights(records, weights) if weights else records
        records = without_shifts(records, words_of(without)) if without else records
        place.mkdir(parents=True, exist_ok=True)
        write_and_print_report(records, place, f"shiftcal: {directory.resolve().name}", left_out, against)
