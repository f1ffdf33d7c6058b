"""`shiftcal gate`: an audit against limits, for CI. Never imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import wrong
from shiftcal.cli._shared import errors_in_one_line

HELP = """Compare an audit with limits: exit code 0 passed, 1 failed, 2 could not be judged.

With --strict, a limit inside the 95 % interval cannot be judged: there are too few images. Prints a summary in
Markdown, for a pull request. Several --where have to be met together; a folder given as --shift has no severity.

Example: shiftcal gate audits/ce/audit.json --max-ece 0.05 --max-shifted-ece 0.15 --where severity<=3"""


def gate(
    audit: Annotated[Path, typer.Argument(metavar="AUDIT", help="An audit.json, or the directory that has it.")],
    max_ece: Annotated[float | None, typer.Option(help="Largest ECE of the clean test set, in 0..1.")] = None,
    max_shifted_ece: Annotated[float | None, typer.Option(help="Largest mean ECE under shift.")] = None,
    max_worst_ece: Annotated[float | None, typer.Option(help="Largest ECE of any shifted test set.")] = None,
    min_accuracy: Annotated[float | None, typer.Option(help="Smallest accuracy of the clean test set.")] = None,
    min_shifted_accuracy: Annotated[float | None, typer.Option(help="Smallest mean accuracy under shift.")] = None,
    where: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", help="Only some shifted test sets: corruption=fog, severity<=3; repeatable."),
    ] = [],  # noqa: B006
    calibrator: Annotated[str | None, typer.Option(help="Judge what it is after a calibrator of the audit.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 2 where the limit lies inside the 95 % interval.")
    ] = False,
    summary: Annotated[
        Path | None, typer.Option(help="Also write the summary into this file: Markdown, or JSON for .json.")
    ] = None,
) -> None:
    """Compare an audit with limits."""
    with errors_in_one_line(summary or audit, stopped="Nothing was judged.", code=2):
        from shiftcal._io import write_atomically
        from shiftcal.auditing.gate import CODES, Limits, checks, overall
        from shiftcal.records.audit import read_audit
        from shiftcal.report.gate import as_json
        from shiftcal.report.gate import summary as summary_of

        limits = Limits(max_ece, max_shifted_ece, max_worst_ece, min_accuracy, min_shifted_accuracy, calibrator)
        given = (max_ece, max_shifted_ece, max_worst_ece, min_accuracy, min_shifted_accuracy)
        if all(value is None for value in given):
            raise wrong("limits", "given, such as --max-ece 0.05", "none")
        for value in given:
            if value is not None and not 0 <= value <= 1:
                raise wrong("limits", "shares in 0..1, such as 0.05 for 5 %", value)
        record = read_audit(audit)
        found = checks(record, limits, where)
        text = summary_of(record, found, strict=strict, where=where, calibrator=calibrator)
        if summary is not None:
            as_wanted = (
                as_json(record, found, strict=strict, where=where) if summary.suffix == ".json" else text.encode()
            )
            write_atomically(summary, as_wanted)
        typer.echo(text)
        raise typer.Exit(CODES[overall(found, strict=strict)])
