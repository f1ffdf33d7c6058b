"""`shiftcal eval`: finished runs again, from their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal.cli._shared import Trust, errors_in_one_line, write_and_print_report

HELP = "Evaluate finished runs again from their weights; writes records, figures and report.html into DIR."


def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run, or a directory of runs.")],
    data: Annotated[Path | None, typer.Option(help="Where the data is now, if not where the run found it.")] = None,
    set_: Annotated[
        list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a key of the evaluation; repeatable.")
    ] = [],  # noqa: B006
    trust: Trust = False,
) -> None:
    """Evaluate finished runs again."""
    with errors_in_one_line(directory):
        from shiftcal.experiments.finished import check_finished, reevaluate
        from shiftcal.records import find_runs

        runs = find_runs(directory)
        for run in runs:
            check_finished(run)
        records = [reevaluate(run, root=data, overrides=set_, trust=trust) for run in runs]
        write_and_print_report(records, directory, f"shiftcal: {directory.resolve().name}")
