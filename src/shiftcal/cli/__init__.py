"""The command line. Heavy packages are imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import ExitStack, redirect_stdout
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

# Before torch is imported: by default its waiting threads spin so long that a busy machine trains ten times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from shiftcal._machine import keep_freed_memory
from shiftcal.cli import (
    analyse,
    audit,
    bench,
    card,
    corrupt,
    data,
    demo,
    evaluate,
    export,
    figures,
    finetune,
    gate,
    predict,
    recipes,
    report,
    train,
)
from shiftcal.cli._shared import is_distributed, show_warning

app = typer.Typer(
    help="Train image classifiers whose confidence stays honest when the data shifts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(help=demo.HELP)(demo.demo)
app.command(help=train.HELP)(train.train)
app.command(help=finetune.HELP)(finetune.finetune)
app.command(help=bench.HELP)(bench.bench)
app.command(help=audit.HELP)(audit.audit)
app.command(help=gate.HELP)(gate.gate)
app.command(help=export.HELP)(export.export)
app.command(help=predict.HELP)(predict.predict)
app.command(help=card.HELP)(card.card)
app.command("eval", help=evaluate.HELP)(evaluate.evaluate)
app.command(help=report.HELP)(report.report)
app.command(help=analyse.HELP)(analyse.analyse)
app.command(help=figures.HELP)(figures.figures)
app.command(help=corrupt.HELP)(corrupt.corrupt)
app.command(help=recipes.HELP)(recipes.recipes)
app.add_typer(data.app, name="data")


def _version(show: bool) -> bool:
    if show:
        from shiftcal import __version__

        typer.echo(f"shiftcal {__version__}")
        raise typer.Exit
    return show


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train image classifiers whose confidence stays honest when the data shifts."""


def main() -> None:
    """Run the command line; under torchrun all ranks run it together and rank 0 prints."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # of another encoding than UTF-8: a word is better than no answer
            stream.reconfigure(errors="replace")
    warnings.showwarning = show_warning  # type: ignore[assignment]
    keep_freed_memory()
    if not is_distributed():
        app()
        return
    from shiftcal import _distributed

    try:
        _distributed.initialise()
    except (RuntimeError, TimeoutError) as error:
        print(f"The other ranks could not be reached: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    with ExitStack() as stack:
        stack.callback(_distributed.destroy)
        if _distributed.rank() > 0:
            stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        app()
