"""`shiftcal analyse`: what studies measure on finished runs, as small arrays for `shiftcal figures`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import wrong
from shiftcal.cli._shared import Device, Trust, errors_in_one_line, words_of

HELP = """Measure on finished runs what figures of studies show: KIND.npz, or gallery.json.

KIND is gradcam (where models look), features (Wasserstein distances of features), noise (of the constraint's
gradient), strips (images filtered with several qualities) or gallery (the surest mistakes under each shift).

Example: shiftcal analyse gradcam runs/ce runs/fgr --shift fog --out studies

Example: shiftcal analyse gallery runs/fgr"""


def analyse(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="gradcam, features, noise, strips or gallery.")],
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Finished runs, or directories that hold some.")],
    out: Annotated[
        Path | None, typer.Option(help="Directory for KIND.npz; that of the run by default, if it is one.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the data is, if not where the runs had it.")
    ] = None,
    images: Annotated[int, typer.Option(help="gradcam, strips: how many images.")] = 8,
    shift: Annotated[str | None, typer.Option(help="gradcam: images of this shift; clean ones by default.")] = None,
    severity: Annotated[int | None, typer.Option(help="gradcam: the shift's severity; the middle one.")] = None,
    layer: Annotated[str | None, typer.Option(help="gradcam: the layer; found by default.")] = None,
    qualities: Annotated[str, typer.Option(metavar="λ,…", help="strips, features: qualities of the filter.")] = "",
    ratios: Annotated[str, typer.Option(metavar="ρ,…", help="features: shares of filtered images.")] = "",
    samples: Annotated[int, typer.Option(help="features: how many images.")] = 4096,
    pairs: Annotated[int, typer.Option(help="noise: pairs of batches.")] = 16,
    look: Annotated[int, typer.Option(help="gallery: images of each test set to look at.")] = 1000,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Measure one kind on finished runs."""
    with errors_in_one_line(out or runs[0], stopped="Nothing was written.", code=2):
        from shiftcal.experiments.analyse import Asked
        from shiftcal.experiments.analyse import analyse as measured

        asked = Asked(
            images=images,
            shift=shift,
            severity=severity,
            layer=layer,
            qualities=tuple(int(number) for number in _numbers("qualities", qualities)),
            ratios=_numbers("ratios", ratios),
            samples=samples,
            pairs=pairs,
            look=look,
        )
        for file in measured(kind, runs, out, asked, root=data, device=device, trust=trust):
            typer.echo(f"{kind}: {file}")


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in words_of(text))
    except ValueError:
        raise wrong(name, "numbers with commas between them", repr(text)) from None
    if not all(map(math.isfinite, found)):
        raise wrong(name, "finite numbers with commas between them", repr(text))
    if name == "qualities" and any(number != int(number) for number in found):
        raise wrong(name, "whole numbers with commas between them", repr(text))
    return found
