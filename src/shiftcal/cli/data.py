"""`shiftcal data`: which data sets there are, and putting them where they are found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal.cli._shared import errors_in_one_line

app = typer.Typer(help="List data sets and put them where they are found.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the data sets by name, and where each is or how to get it."""
    with errors_in_one_line(Path()):
        from shiftcal.data import DATASETS
        from shiftcal.data.files.prepare import state

        for name in DATASETS:
            typer.echo(f"{name:<14} {state(name)}")


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a data set, see `shiftcal data list`.")],
    source: Annotated[Path | None, typer.Option("--from", help="A folder or archive that holds it.")] = None,
    max_gigabytes: Annotated[
        float | None, typer.Option(help="Largest size of what an archive holds; by default ten times its own and 1 GB.")
    ] = None,
) -> None:
    """Download a data set, or take it from a folder or archive, and read it to see that it is all right."""
    with errors_in_one_line(Path()):
        from shiftcal.data.files.prepare import prepare

        made = prepare(name, source, max_bytes=None if max_gigabytes is None else int(max_gigabytes * 1e9))
        counts = f"{len(made.train):,} training, {len(made.validation):,} validation and {len(made.test):,} test images"
        typer.echo(f"{name}: {counts} of {len(made.classes)} classes, {list(made.train.shape)}.")
