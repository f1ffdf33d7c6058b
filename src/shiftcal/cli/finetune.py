"""`shiftcal finetune`: the classifier of a trained network alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import wrong
from shiftcal.cli._shared import (
    Holdout,
    Plugin,
    Resume,
    Set,
    Trust,
    errors_in_one_line,
    plugin_words,
    report_files,
    resume_command,
    with_options,
)

HELP = """Freeze a trained classifier but for its last layer, and train that with FGR.

CHECKPOINT is the directory of a run, or a file with the weights of a model that the recipe names: safetensors, or
a state dict saved by torch. The features of several views of each training image are kept, so that it takes
minutes. The table shows the checkpoint before and after.

Example: shiftcal finetune runs/cifar10-ce --out runs/cifar10-finetuned

Example: shiftcal finetune theirs.pt --recipe quick-cifar10 --set train.model=their_code:make --out runs/mine"""


def finetune(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Directory of a run, or file of weights.")],
    out: Annotated[Path, typer.Option(help="Directory for the run; new or empty.")],
    recipe: Annotated[
        str | None, typer.Option(help="Recipe that names data and model; that of the run by default.")
    ] = None,
    set_: Set = [],  # noqa: B006
    holdout: Holdout = None,
    plugin: Plugin = [],  # noqa: B006
    resume: Resume = False,
    trust: Trust = False,
) -> None:
    """Train a classifier's last layer."""
    set_ = with_options(set_, None, holdout)
    words = [str(checkpoint), *(["--recipe", recipe] if recipe else []), *plugin_words(plugin)]
    with errors_in_one_line(out, resume_command("finetune", words, set_, out)):
        from shiftcal._plugins import load_plugins
        from shiftcal.experiments.checks import check_finetune_overrides
        from shiftcal.experiments.config import config_of_run, load_config
        from shiftcal.experiments.run import complete
        from shiftcal.report.table import before_and_after
        from shiftcal.report.terminal import print_table

        if not checkpoint.exists():
            raise wrong("CHECKPOINT", "the directory of a run, or a file with weights", str(checkpoint))
        if recipe is None and checkpoint.is_file():
            raise wrong("recipe", "given, since a file does not tell its data and model", "nothing")
        check_finetune_overrides(set_)
        changes = ["method=fgr", *set_, f"finetuned_from={json.dumps(str(checkpoint))}"]
        load_plugins(plugin)
        if recipe:
            config = load_config(recipe, changes, plugin)
        else:
            config = config_of_run(checkpoint, changes, trust=trust, plugins=plugin)
        record = complete(config, out, resume=resume, artefacts=report_files)
        print_table(before_and_after(record))
        typer.echo(f"Record: {out / 'record.json'}")
