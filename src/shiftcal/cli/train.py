"""`shiftcal train`: one run by a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal.cli._shared import (
    Holdout,
    Plugin,
    Resume,
    Set,
    Weights,
    errors_in_one_line,
    plugin_words,
    report_files,
    resume_command,
    was_restarted,
    with_options,
)
from shiftcal.methods import METHODS

HELP = f"""Train one method by a recipe, evaluate it on clean and shifted test sets, and write its record.

Example: shiftcal train demo --set method=fgr --set train.epochs=4 --set seed=3 --out runs/mine

Example: shiftcal train demo --plugin my_methods --set method=mine --out runs/mine

Methods: {", ".join(METHODS)}. Other keys are those of the recipe, such as gamma.fgr or filter.ratio."""


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe (demo) or path of a TOML file.")],
    out: Annotated[Path, typer.Option(help="Directory for the run; new or empty.")],
    set_: Set = [],  # noqa: B006
    weights: Weights = None,
    holdout: Holdout = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same result every time (--set engine.deterministic=true).")
    ] = False,
    plugin: Plugin = [],  # noqa: B006
    resume: Resume = False,
) -> None:
    """Train one run."""
    set_ = with_options(set_, weights, holdout) + ["engine.deterministic=true"] * deterministic
    with errors_in_one_line(out, resume_command("train", [recipe, *plugin_words(plugin)], set_, out)):
        from shiftcal.experiments.config import load_config
        from shiftcal.experiments.run import complete
        from shiftcal.report.terminal import print_table

        if resume and not out.exists():
            typer.echo(f"There is nothing to resume in {out}: the run starts from the beginning.")
        config = load_config(recipe, set_, plugin)
        record = complete(config, out, resume=resume or was_restarted(), artefacts=report_files)
        print_table([record])
        typer.echo(f"Record: {out / 'record.json'}")
