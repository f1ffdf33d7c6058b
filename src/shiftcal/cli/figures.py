"""`shiftcal figures`: figures of studies, from records and arrays alone."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import unknown, wrong
from shiftcal.cli._shared import errors_in_one_line, words_of

HELP = """Draw a study's figures from the records of runs, or from what `shiftcal analyse` measured; without training.

Without arguments it lists the studies: what each shows, what it needs, and the command that makes that.

Example: shiftcal figures

Example: shiftcal figures boxes runs/grid --out figures --format pdf,png"""


def figures(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", help="Which study.")] = None,
    places: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR…]", help="Runs, directories of runs, records.jsonl files, or .npz of `analyse`."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the figures.")] = None,
    kinds: Annotated[str, typer.Option("--format", metavar="KIND,…", help="png, pdf, svg.")] = "png",
    key: Annotated[str | None, typer.Option(help="sensitivity: the key, as filter.ratio; found by default.")] = None,
    temperature: Annotated[str, typer.Option(help="temperature: clean or shift_aware.")] = "clean",
    weights: Annotated[
        str | None, typer.Option(help="Show other weights that the runs evaluated (evaluation.also).")
    ] = None,
    methods: Annotated[str, typer.Option(metavar="METHOD,…", help="Show these methods alone.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the studies.")] = False,
) -> None:
    """Draw a study, or list all."""
    with errors_in_one_line(out or Path(), stopped="Not all figures were written.", code=2):
        from shiftcal.report.figures.canvas import FORMATS
        from shiftcal.report.studies import STUDIES, Material, make_study, write_study

        if study is None or list_:
            _list()
            return
        if study not in STUDIES:
            raise unknown("STUDY", study, STUDIES)
        wanted = words_of(kinds)
        for kind in wanted:
            if kind not in FORMATS:
                raise unknown("format", kind, FORMATS)
        if not places or out is None or not wanted:
            found = f"shiftcal figures {study}"
            raise wrong("figures", f"called as `{found} DIR… --out DIR`", f"without {'--out' if places else 'DIR'}")
        material = Material(
            tuple(places), key=key, temperature=temperature, weights=weights, methods=tuple(words_of(methods))
        )
        for file in write_study(make_study(study, material), out, wanted):
            typer.echo(f"{study}: {file}")


def _list() -> None:
    from shiftcal.report.studies import STUDIES

    width = max(map(len, STUDIES)) + 2
    for study in STUDIES.values():
        lines = [f"{study.shows}.", f"Needs {study.needs}:", f"  {study.command}"]
        first, *rest = [part for line in lines[:2] for part in textwrap.wrap(line, 100)] + lines[2:]
        typer.echo(f"{study.name:<{width}}{first}")
        for line in rest:
            typer.echo(f"{'':<{width}}{line}")
    typer.echo("\n`shiftcal figures STUDY DIR… --out DIR` draws one; the paper's names of figures are in brackets.")
