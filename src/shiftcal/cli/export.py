"""`shiftcal export`: a model and its calibrator as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import ExportError
from shiftcal.cli._shared import (
    ChannelMean,
    ChannelStd,
    Classes,
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
    fail,
    outputs_of,
)

HELP = """Write a model with its calibrator as one file that takes normalised images and gives calibrated probabilities.

MODEL is the directory of a run, a checkpoint whose network --model names, or timm/NAME. The file is ONNX (.onnx) or
torch.export's (.pt2), takes any batch size, and says what it takes and gives. It is compared with PyTorch on real
images, and only written where they agree.

Example: shiftcal export runs/cifar10-ce --calibrator audits/ce/calibrator.safetensors --to model.onnx"""


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="What to export.")],
    calibrator: Annotated[str, typer.Option(metavar="FILE", help="File of `audit --calibrate`, or `none`.")],
    to: Annotated[Path, typer.Option(metavar="FILE", help="The file to write: .onnx or .pt2.")],
    data: Annotated[
        Path | None, typer.Option(help="Folder of images to compare on; the run's own test images by default.")
    ] = None,
    network: Network = None,
    weights: ModelWeights = None,
    outputs: GivenOutputs = None,
    classes: Classes = None,
    size: Size = None,
    resize: Resize = None,
    interpolation: Resampling = None,
    mean: ChannelMean = "",
    std: ChannelStd = "",
    plugin: Plugin = [],  # noqa: B006
    trust: TrustModel = False,
) -> None:
    """Export a model."""
    with errors_in_one_line(to, stopped="Nothing was written."):
        from shiftcal._plugins import load_plugins
        from shiftcal.inference.export import export_model
        from shiftcal.inference.request import Wanted

        load_plugins(plugin)
        wanted = Wanted(
            model=model,
            data=None if data is None else str(data),
            network=network,
            weights=weights,
            outputs=outputs_of(outputs),
            classes=classes,
            size=size,
            resize=resize,
            interpolation=interpolation,
            mean=channels_of("mean", mean),
            std=channels_of("std", std),
            trust=trust,
        )
        try:
            made = export_model(wanted, None if calibrator == "none" else Path(calibrator), to)
        except ExportError as error:
            fail(str(error), 1)
        for note in made.notes:
            typer.echo(f"export  {note}")
        typer.echo(
            f"{to}: calibrator {made.calibrator or 'none'}; on {made.compared_on} its probabilities differ from "
            f"PyTorch's by {made.agreement.difference:.1e} at most."
        )
