"""`shiftcal corrupt`: corrupted copies of a test set on disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from shiftcal._errors import wrong
from shiftcal.cli._shared import errors_in_one_line, words_of

HELP = """Write corrupted copies of a test set: noise, blur, weather and digital corruptions at five severities.

SRC is an .npy file of uint8 images [N, H, W, 3], with labels.npy beside it, or a folder with one folder of images
for each class. DST gets CIFAR-10-C's layout for the former (NAME.npy with the severities one after the other, and
labels.npy) and ImageNet-C's for the latter (NAME/SEVERITY/CLASS/FILE). The same command completes what was
interrupted.

Example: shiftcal corrupt test.npy corrupted --constants cifar

Example: shiftcal corrupt photo.jpg sheet.png --preview --constants imagenet"""


def corrupt(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="An .npy file, a folder of class folders, an image.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="A new folder; with --preview, a PNG file.")],
    constants: Annotated[
        str, typer.Option(help="Whose severities: cifar (32×32), tiny-imagenet (64×64) or imagenet (224×224).")
    ] = "cifar",
    names: Annotated[str, typer.Option(help="Corruptions, comma-separated; all: the 15, extra: the 4 others.")] = "all",
    severities: Annotated[str, typer.Option(help="Severities, comma-separated.")] = "1,2,3,4,5",
    seed: Annotated[int, typer.Option(help="Seed of the random corruptions.")] = 0,
    frost: Annotated[str | None, typer.Option(help="Folder with photographs of frost, or drawn.")] = None,
    labels: Annotated[Path | None, typer.Option(help="An .npy file of class indices for an .npy SRC.")] = None,
    layout: Annotated[str | None, typer.Option(help="arrays or tree, instead of what SRC suggests.")] = None,
    size: Annotated[int | None, typer.Option(help="Resize and cut files to SIZE×SIZE, as ImageNet-C does.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    preview: Annotated[bool, typer.Option("--preview", help="Write one contact sheet of the first image.")] = False,
) -> None:
    """Write corrupted test sets."""
    with errors_in_one_line(destination, stopped="What is finished is kept; the same command continues."):
        from shiftcal.experiments.environment import resolve_device
        from shiftcal.shifts.corruptions import named
        from shiftcal.shifts.source import open_source
        from shiftcal.shifts.write import write_corrupted

        chosen = named(words_of(names))
        levels = _severities(severities)
        images = open_source(source, labels=labels, size=size)
        if preview:
            _preview(images, destination, chosen, constants, seed, frost)
            return
        if source.is_file() and images.array is None:
            raise wrong("SRC", "an .npy file or a folder (one image goes with --preview)", str(source))
        write_corrupted(
            images,
            destination,
            names=chosen,
            severities=levels,
            constants=constants,
            seed=seed,
            frost=frost,
            layout=layout,  # type: ignore[arg-type]
            device=resolve_device(device).type,
        )
        typer.echo(f"Corrupted sets: {destination}")
        if images.targets is None:
            typer.echo("They have no labels.npy: there was none beside SRC, and --labels named none.")


def _severities(text: str) -> list[int]:
    words = words_of(text)
    if not words or not all(word in ("1", "2", "3", "4", "5") for word in words):
        raise wrong("severities", "one or more of 1, 2, 3, 4, 5, comma-separated", repr(text))
    return sorted({int(word) for word in words})


def _preview(source: Any, path: Path, names: Sequence[str], constants: str, seed: int, frost: str | None) -> None:
    from shiftcal._io import write_atomically
    from shiftcal.report.figures import contact_sheet
    from shiftcal.shifts.write import preview

    if path.suffix.lower() != ".png" or path.is_dir():
        raise wrong("DST", "a PNG file with --preview", repr(str(path)))
    labels, rows = preview(source, names=names, constants=constants, seed=seed, frost=frost)
    sheet = contact_sheet([label.replace("_", " ") for label in labels], rows, ["clean", "1", "2", "3", "4", "5"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, sheet)
    typer.echo(f"Contact sheet: {path}")
