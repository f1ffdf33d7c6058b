"""`shiftcal audit`: how far a model's confidence can be trusted, where it breaks, what mends it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shiftcal._errors import wrong
from shiftcal.cli._shared import errors_in_one_line, is_distributed, words_of

if TYPE_CHECKING:
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
    network: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="A checkpoint's network: NAME or module:factory.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="File with the weights of timm/NAME.")] = None,
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
    outputs: Annotated[str | None, typer.Option(help="What the model gives: logits or probabilities.")] = None,
    classes: Annotated[Path | None, typer.Option(help="File that names the model's outputs, one a line.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels of the model's input.")] = None,
    resize: Annotated[int | None, typer.Option(help="Pixels of the shorter side before the middle is cut out.")] = None,
    interpolation: Annotated[str | None, typer.Option(help="bilinear, bicubic, nearest or lanczos.")] = None,
    mean: Annotated[str, typer.Option(metavar="R,G,B", help="Mean of the channels, in 0..1.")] = "",
    std: Annotated[str, typer.Option(metavar="R,G,B", help="Standard deviation of the channels.")] = "",
    bins: Annotated[int, typer.Option(help="Number of confidence bins.")] = 15,
    batch_size: Annotated[int, typer.Option(help="Images at a time.")] = 500,
    frost: Annotated[str | None, typer.Option(help="Folder with photographs of frost, or `drawn`.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    trust: Annotated[bool, typer.Option("--trust", help="Run code that a run's config or a .pt2 file names.")] = False,
) -> None:
    """Audit a classifier."""
    with errors_in_one_line(out, stopped="The same command continues."):
        from shiftcal.experiments.audited import Wanted, audit_model, audit_tables

        if (model is None) == (predictions is None):
            raise wrong("MODEL", "given, or --predictions, not both", model or "nothing")
        if bins < 1 or batch_size < 1:
            raise wrong("bins", "positive, and batch-size too", f"{bins}, {batch_size}")
        if predictions is not None:
            record = audit_tables([Path(word) for word in words_of(predictions)], out, bins=bins, classes=classes)
        else:
            wanted = Wanted(
                model=str(model),
                data=data,
                network=network,
                weights=weights,
                validation=validation,
                shifts=dict(_shift(word) for word in shift),
                outputs=_outputs(outputs),
                classes=classes,
                size=size,
                resize=resize,
                interpolation=interpolation,
                mean=_channels("mean", mean),
                std=_channels("std", std),
                corruptions=() if corruptions == "none" else tuple(words_of(corruptions)),
                constants=constants,
                frost=frost,
                bins=bins,
                batch_size=batch_size,
                device=device,
                trust=trust,
            )
            record = audit_model(wanted, out)
        show(record, out)


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


def _shift(word: str) -> tuple[str, Path]:
    name, equals, folder = word.partition("=")
    if not equals or not name or not folder:
        raise wrong("shift", "of the form NAME=FOLDER", repr(word))
    return name, Path(folder)


def _outputs(word: str | None) -> Literal["logits", "probabilities"] | None:
    if word not in (None, "logits", "probabilities"):
        raise wrong("outputs", "logits or probabilities", repr(word))
    return word  # type: ignore[return-value]


def _channels(name: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(word) for word in words_of(text))
    except ValueError:
        raise wrong(name, "three numbers, such as 0.5,0.5,0.5", repr(text)) from None
    if len(values) not in (0, 3) or (name == "std" and any(value <= 0 for value in values)):
        raise wrong(name, "three numbers, such as 0.5,0.5,0.5 (those of std above 0)", repr(text))
    return values
