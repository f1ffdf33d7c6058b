"""Grad-CAM panels: what several models look at in the same images (FGR paper, figures "motivation" and "gradcam")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shiftcal.records.arrays import Arrays
from shiftcal.report.figures.canvas import blank, shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Look:
    """What one model made of one image: its map in 0..1, the predicted class, the confidence, and whether it is right.

    Attributes:
        map: [height, width].
    """

    map: Any
    predicted: str
    confidence: float
    right: bool


@dataclass(frozen=True)
class CamPanels:
    """Images, their classes, and for each model its look at each image."""

    models: tuple[str, ...]
    images: tuple[Any, ...]
    classes: tuple[str, ...]
    looks: tuple[tuple[Look, ...], ...]
    shift: str


def cam_data(arrays: Arrays) -> CamPanels:
    """Put arrays and labels together, and check that they fit."""
    models, names = arrays.strings("runs"), arrays.strings("classes")
    images = arrays.array("images", None, None, None, 3)
    n, height, width = images.shape[:3]
    for name, count in (("models", len(models)), ("images", n)):
        arrays.check_few(name, count)
    arrays.check_few("pixels", height * width, most=2**24)
    maps = arrays.array("maps", len(models), n, height, width)
    targets, predicted = arrays.array("targets", n), arrays.array("predicted", len(models), n)
    confidence = arrays.array("confidence", len(models), n)

    def class_of(index: Any) -> str:
        return names[int(index)] if 0 <= int(index) < len(names) else f"class {int(index)}"

    looks = tuple(
        tuple(
            Look(
                maps[m, i].astype(float).clip(0, 1),
                class_of(predicted[m, i]),
                float(confidence[m, i]),
                bool(predicted[m, i] == targets[i]),
            )
            for i in range(n)
        )
        for m in range(len(models))
    )
    shift = arrays.labels.get("shift")
    return CamPanels(
        tuple(models),
        tuple(images.astype("uint8")),
        tuple(map(class_of, targets)),
        looks,
        shift if isinstance(shift, str) else "clean",
    )


def draw_cams(panels: CamPanels) -> Figure:
    """Draw a column for each image: the image, then below it each model's map, with its prediction and confidence."""
    rows, columns = len(panels.models) + 1, len(panels.images)
    height, width = panels.images[0].shape[:2]
    figure = blank(1.55 * columns + 0.5, (1.55 * height / width + 0.35) * rows)
    axes = figure.subplots(rows, columns, squeeze=False)
    for i, (image, true) in enumerate(zip(panels.images, panels.classes, strict=True)):
        axes[0][i].imshow(image)
        axes[0][i].set_xlabel(shown(true), fontsize=8)
        for m in range(len(panels.models)):
            look = panels.looks[m][i]
            axes[m + 1][i].imshow(image)
            axes[m + 1][i].imshow(look.map, cmap="jet", alpha=0.45, vmin=0, vmax=1)
            colour = "#2e7d32" if look.right else "#c62828"
            axes[m + 1][i].set_xlabel(f"{shown(look.predicted)}, {look.confidence:.0%}", fontsize=8, color=colour)
    for row, title in enumerate((f"image ({panels.shift})", *panels.models)):
        axes[row][0].set_ylabel(shown(title), fontsize=9)
    for axis in axes.flatten():
        axis.set(xticks=[], yticks=[])
    return figure
