"""`shiftcal predict`: labels and calibrated confidence for a folder of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import check_count
from shiftcal.cli._shared import (
    ChannelMean,
    ChannelStd,
    Classes,
    Device,
    GivenOutputs,
    ModelWeights,
    Network,
    Plugin,
    Resampling,
    Resize,
    Size,
    TrustModel,
    channels_of,
    errors_in_one_line,
    outputs_of,
)

HELP = """Predict a folder of images: a table with the label of each and how sure the model is.

MODEL is the directory of a run; a checkpoint (.safetensors, .pt, .ckpt) whose network --model names; timm/NAME; an
.onnx file; or a .pt2 file. FOLDER may be laid out in any way. Columns are file, label and confidence.

Example: shiftcal predict runs/cifar10-ce photos --calibrator audits/ce/calibrator.safetensors --out predictions.csv

Example: shiftcal predict model.onnx photos --out predictions.parquet"""


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What to predict with.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Images, in folders or not.")],
    out: Annotated[Path, typer.Option(help="The table: .csv or .parquet.")],
    calibrator: Annotated[Path | None, typer.Option(metavar="FILE", help="File of `audit --calibrate`.")] = None,
    every_class: Annotated[bool, typer.Option("--all", help="Also the probability of every class.")] = False,
    network: Network = None,
    weights: ModelWeights = None,
    outputs: GivenOutputs = None,
    classes: Classes = None,
    size: Size = None,
    resize: Resize = None,
    interpolation: Resampling = None,
    mean: ChannelMean = "",
    std: ChannelStd = "",
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 64,
    device: Device = "auto",
    plugin: Plugin = [],  # noqa: B006
    trust: TrustModel = False,
) -> None:
    """Predict a folder of images."""
    with errors_in_one_line(out, stopped="Nothing was written."):
        from shiftcal._plugins import load_plugins
        from shiftcal.inference.predict import predict_folder
        from shiftcal.inference.request import Wanted

        load_plugins(plugin)
        check_count("batch-size", batch_size)
        wanted = Wanted(
            model=model,
            network=network,
            weights=weights,
            outputs=outputs_of(outputs),
            classes=classes,
            size=size,
            resize=resize,
            interpolation=interpolation,
            mean=channels_of("mean", mean),
            std=channels_of("std", std),
            batch_size=batch_size,
            device=device,
            trust=trust,
        )
        made = predict_folder(wanted, folder, out, calibrator=calibrator, every_class=every_class)
        for note in made.notes:
            typer.echo(f"predict  {note}")
        left_out = f"; {made.unreadable} could not be read and have no row" if made.unreadable else ""
        kind = f"calibrated by {made.calibrator}" if made.calibrator else "as the model gives it, without a calibrator"
        typer.echo(f"{out}: {made.images} images{left_out}. Confidence is {kind}.")
