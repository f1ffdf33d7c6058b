"""`shiftcal report`: tables, figures and the page, from records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import wrong
from shiftcal.cli._shared import errors_in_one_line, words_of, write_and_print_report

HELP = """Write the tables, the figures and report.html of the records in DIR, without training or evaluating.

Several directories or files of records make one report: runs are named by what differs, and each data set and network
has tables of its own.

Example: shiftcal report runs/cifar10 runs/cifar100 --out runs/both"""


def report(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…", help="Finished runs, directories of runs, files with a grid's records; or audits."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Where to write; DIR by default, if there is one alone.")] = None,
    against: Annotated[
        str | None, typer.Option(metavar="METHOD", help="Also tabulate differences to this method, seed by seed.")
    ] = None,
    methods: Annotated[str, typer.Option(metavar="METHOD,…", help="Show these methods alone.")] = "",
    without: Annotated[str, typer.Option(metavar="SHIFT,…", help="Leave shifts out of the means.")] = "",
    weights: Annotated[
        str | None,
        typer.Option(help="Show other weights that the runs evaluated (evaluation.also): last, average, best_ece, …"),
    ] = None,
) -> None:
    """Write the report of records."""
    first = places[0]
    place = out or (first.parent if first.is_file() else first)
    with errors_in_one_line(place):
        from shiftcal.records import load_all
        from shiftcal.records.audit import audits_in, is_audit
        from shiftcal.records.gallery import galleries_of
        from shiftcal.records.selection import choices_in
        from shiftcal.report.choose import with_methods, with_weights, without_shifts

        if len(places) > 1 and out is None:
            raise wrong("out", "given for the report of several directories", f"none, for {len(places)} of them")
        if any(map(is_audit, places := audits_in(places))):
            if against or methods or without or weights:
                raise wrong("against, methods, without and weights", "left out for audits", "given")
            return _report_audits(places, place)
        records, left_out = load_all(places)
        records = with_methods(records, words_of(methods)) if methods else records
        records = with_weights(records, weights) if weights else records
        records = without_shifts(records, words_of(without)) if without else records
        place.mkdir(parents=True, exist_ok=True)
        folders = [one.resolve().parent if one.is_file() else one.resolve() for one in places]
        title = f"shiftcal: {', '.join(dict.fromkeys('/'.join(folder.parts[-2:]) for folder in folders))}"
        write_and_print_report(records, place, title, left_out, against, galleries_of(places), choices_in(places))
    return None


def _report_audits(places: list[Path], out: Path) -> None:
    from shiftcal.records.audit import is_audit
    from shiftcal.report.audit import write_audit_report

    runs = [str(place) for place in places if not is_audit(place)]
    if runs:
        expected = "runs, or audits, in one report (`shiftcal audit RUN` audits a run)"
        raise wrong("places", expected, f"audits beside {', '.join(runs)}")
    out.mkdir(parents=True, exist_ok=True)
    page = write_audit_report(out, places)
    typer.echo((out / "table.md").read_text(encoding="utf-8"))
    typer.echo(f"Report: {page}")
