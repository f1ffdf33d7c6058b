"""`shiftcal recipes`: what recipes there are, and what they say in full."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import unknown, wrong
from shiftcal.cli._shared import errors_in_one_line

HELP = """List the recipes of the package, a line each; `show RECIPE` prints one with all its keys.

Example: shiftcal recipes

Example: shiftcal recipes show quick-cifar10"""


def recipes(
    action: Annotated[
        str | None, typer.Argument(metavar="[show", help="show: print a recipe with all its keys.")
    ] = None,
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE]", help="Name of a recipe or path of a TOML file.")
    ] = None,
) -> None:
    """List recipes, or show one."""
    with errors_in_one_line(Path()):
        from shiftcal.experiments.recipes import headline, recipe_names

        if action is None:
            names = recipe_names()
            for name in names:
                typer.echo(f"{name:<{max(map(len, names))}}  {headline(name)}")
            typer.echo("\n`shiftcal recipes show NAME` prints one with all its keys.")
            return
        if action != "show":
            raise unknown("recipes", action, ("show",))
        if recipe is None:
            raise wrong("RECIPE", f"one of {', '.join(recipe_names())}, or a TOML file", "nothing")
        from shiftcal.experiments.config import load_config, to_toml

        typer.echo(to_toml(load_config(recipe)), nl=False)
