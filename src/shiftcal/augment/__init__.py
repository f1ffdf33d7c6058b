"""Augmentations of whole batches, on the device of the images, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shiftcal.augment.crop_flip import crop_flip


def unchanged(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return the images as they are."""
    return images


AUGMENTATIONS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {"none": unchanged, "crop_flip": crop_flip}

__all__ = ["AUGMENTATIONS", "crop_flip", "unchanged"]
