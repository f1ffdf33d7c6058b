"""Sample images of test sets with a model's prediction: the mistakes it is surest of, and a few that are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from shiftcal.evaluation import Parts, device_of, evaluating

LONGEST = 64  # pixels of a thumbnail


@dataclass(frozen=True)
class Shown:
    """One image: which set it is of, true and predicted class by index, the confidence, and a thumbnail."""

    shift: str | None
    severity: int | None
    true: int
    predicted: int
    confidence: float
    thumbnail: UInt8[Tensor, "3 height width"]

    @property
    def right(self) -> bool:
        """Whether the prediction is right."""
        return self.true == self.predicted


def samples_of(
    model: nn.Module,
    split: Parts,
    preprocess: Callable[[Tensor], Tensor],
    *,
    shift: str | None = None,
    severity: int | None = None,
    look: int = 1000,
    mistakes: int = 6,
    right: int = 2,
    batch_size: int = 250,
) -> list[Shown]:
    """Look at the first images of a set: keep the mistakes of highest confidence, then the first that are right.

    No other rank is asked: each that calls this does all of the work.
    """
    seen, wrong_ones, right_ones = 0, list[Shown](), list[Shown]()
    with evaluating(model), torch.inference_mode():
        for _, part in split.to(device_of(model)).parts(batch_size):
            confidence, predicted = model(preprocess(part.images)).float().softmax(-1).max(-1)
            missed = (predicted != part.targets).nonzero().squeeze(1)
            surest = missed[confidence[missed].argsort(descending=True)[:mistakes]]
            hits = (predicted == part.targets).nonzero().squeeze(1)[: right - len(right_ones)]
            found = (part.images, part.targets, predicted, confidence)
            wrong_ones += _shown(*found, surest, shift, severity)
            right_ones += _shown(*found, hits, shift, severity)
            seen += len(part.targets)
            if seen >= look:
                break
    return sorted(wrong_ones, key=lambda one: -one.confidence)[:mistakes] + right_ones


def _shown(
    images: UInt8[Tensor, "n 3 height width"],
    targets: Int[Tensor, " n"],
    predicted: Int[Tensor, " n"],
    confidence: Float[Tensor, " n"],
    places: Int[Tensor, " k"],
    shift: str | None,
    severity: int | None,
) -> Iterator[Shown]:
    for place in places.tolist():
        thumbnail = thumbnail_of(images[place])
        values = int(targets[place]), int(predicted[place]), float(confidence[place])
        yield Shown(shift, severity, *values, thumbnail)


def thumbnail_of(image: UInt8[Tensor, "3 height width"], longest: int = LONGEST) -> UInt8[Tensor, "3 rows columns"]:
    """Shrink an image to at most so many pixels on its long side; a smaller one stays as it is."""
    height, width = image.shape[1:]
    scale = longest / max(height, width)
    if scale >= 1:
        return image.cpu().clone()
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    resized = functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    return resized.round().clamp(0, 255).to(torch.uint8).cpu()


def middle_severity(severities: list[int | None]) -> int | None:
    """Choose the severity that stands for a shift: 3 if it has that, else the middle one.

    Example:
        >>> middle_severity([1, 2, 3, 4, 5]), middle_severity([1, 2]), middle_severity([None])
        (3, 1, None)
    """
    return 3 if 3 in severities else severities[(len(severities) - 1) // 2]
