"""`shiftcal audit`: how far a model's confidence can be trusted, where it breaks, what mends it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shiftcal._errors import check_count, wrong
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
    is_distributed,
    outputs_of,
    words_of,
)

if TYPE_CHECKING:
    from shiftcal.auditing.measure import Fitted
    from shiftcal.records.audit import AuditRecord

HELP = """Audit a classifier: how far its confidence can be trusted, where it breaks, what mends it.

MODEL is the directory of a run; a checkpoint (.safetensors, .pt, .ckpt) whose network --model names; timm/NAME;
an .onnx file; or a .pt2 file that torch.export wrote. Writes audit.json and audit.html into DIR.

Example: shiftcal audit runs/cifar10-ce --out audits/ce

Example: shiftcal audit theirs.pt --model their_code:make --data photos --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5
--shift new-camera=other-photos --out audits/theirs

Example: shiftcal audit --predictions predictions.csv --out audits/table"""


def audit(
    out: Annotated[Path, typer.Option(help="Directory for the audit; new, or that of an interrupted one.")],
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="What to audit.")] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of images, prepared data set or recipe; that of a run by default.")
    ] = None,
    network: Network = None,
    weights: ModelWeights = None,
    predictions: Annotated[
        str | None, typer.Option(metavar="FILE,…", help="Predictions instead of a model: .npz, .npy, .csv, .parquet.")
    ] = None,
    validation: Annotated[Path | None, typer.Option(help="Folder of validation images, for calibrators.")] = None,
    shift: Annotated[
        list[str], typer.Option(metavar="NAME=FOLDER", help="A shifted test set, as a folder; repeatable.")
    ] = [],  # noqa: B006
    corruptions: Annotated[str, typer.Option(help="Corruptions to try: all, extra, names, or none.")] = "all",
    constants: Annotated[
        str | None, typer.Option(help="Severities made for cifar, tiny-imagenet or imagenet; the nearest by default.")
    ] = None,
    outputs: GivenOutputs = None,
    classes: Classes = None,
    size: Size = None,
    resize: Resize = None,
    interpolation: Resampling = None,
    mean: ChannelMean = "",
    std: ChannelStd = "",
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also write calibrator.safetensors: `best`, or one of the audit's by name."),
    ] = None,
    gallery: Annotated[
        bool, typer.Option("--gallery/--no-gallery", help="Keep small sample images with predictions (gallery.json).")
    ] = True,
    bins: Annotated[int, typer.Option(help="Number of confidence bins.")] = 15,
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 500,
    frost: Annotated[str | None, typer.Option(help="Folder with photographs of frost, or `drawn`.")] = None,
    device: Device = "auto",
    plugin: Plugin = [],  # noqa: B006
    trust: TrustModel = False,
) -> None:
    """Audit a classifier."""
    with errors_in_one_line(out, stopped="The same command continues.", code=2):
        from shiftcal._plugins import load_plugins
        from shiftcal.inference.audit import audit_model, audit_tables
        from shiftcal.inference.calibrate import (
            calibrator_name,
            fit_model_again,
            fit_tables_again,
            write_calibrator,
        )
        from shiftcal.inference.request import Wanted

        load_plugins(plugin)
        if (model is None) == (predictions is None):
            raise wrong("MODEL", "given, or --predictions, not both", model or "nothing")
        if predictions is not None:
            of_models = {
                "data": data,
                "model": network,
                "weights": weights,
                "validation": validation,
                "shift": shift,
                "corruptions": None if corruptions == "all" else corruptions,
                "outputs": outputs,
                "size": size,
                "resize": resize,
                "interpolation": interpolation,
                "mean": mean,
                "std": std,
                "constants": constants,
                "frost": frost,
            }
            if given := [f"--{name}" for name, value in of_models.items() if value]:
                expected = "given without options for a model (a table says itself what it has, docs/audit.md)"
                raise wrong("predictions", expected, ", ".join(given))
        check_count("bins", bins)
        check_count("batch-size", batch_size)
        if calibrate is not None:
            calibrator_name(calibrate)  # before the audit, which may take long
        fitted: list[Fitted] = []
        files = [Path(word) for word in words_of(predictions or "")]
        if predictions is not None:
            record = audit_tables(files, out, bins=bins, classes=classes, on_fitted=fitted.append)
        else:
            wanted = Wanted(
                model=str(model),
                data=data,
                network=network,
                weights=weights,
                validation=validation,
                shifts=_shifts(shift),
                outputs=outputs_of(outputs),
                classes=classes,
                size=size,
                resize=resize,
                interpolation=interpolation,
                mean=channels_of("mean", mean),
                std=channels_of("std", std),
                corruptions=() if corruptions == "none" else tuple(words_of(corruptions)),
                constants=constants,
                frost=frost,
                bins=bins,
                batch_size=batch_size,
                device=device,
                trust=trust,
            )
            record = audit_model(wanted, out, on_fitted=fitted.append, gallery=gallery)
        show(record, out)
        if calibrate is not None:
            if not fitted:  # the audit was finished earlier
                fitted.append(fit_tables_again(files, classes) if predictions is not None else fit_model_again(wanted))
            name, file = write_calibrator(out, record, calibrate, fitted[0])
            typer.echo(f"Calibrator: {file} ({name}, fitted on {record.calibrators[name].fitted_on})")


def show(record: AuditRecord, out: Path) -> None:
    """Write the page, and print the table and the verdict."""
    if is_distributed() and not _first_rank():
        return
    from shiftcal.report.audit import markdown, print_audit, write_audit_page

    page = write_audit_page(out, record)
    if sys.stdout.isatty():
        print_audit(record)
    else:
        typer.echo(markdown(record))
    typer.echo(f"Audit: {page}")


def _first_rank() -> bool:
    import os

    return os.environ.get("RANK", "0") == "0"


def _shifts(words: list[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, folder in map(_shift, words):
        if name in found:
            raise wrong("shift", "a name that no other test set has", name)
        found[name] = folder
    return found


def _shift(word: str) -> tuple[str, Path]:
    name, equals, folder = word.partition("=")
    if not equals or not name or not folder:
        raise wrong("shift", "of the form NAME=FOLDER", repr(word))
    return name, Path(folder)
