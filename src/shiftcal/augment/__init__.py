"""Augmentations of whole batches, on the device of the images.

AUGMENTATIONS turn stored images into stored images and belong to a recipe; `mixup` and `augmix` come with an objective
of their own and belong to a method, and so does a `Perturbation`, which replaces a share of the images.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shiftcal.augment._inputs import Rows
from shiftcal.augment.augmix import augmix, augmix_loss, jensen_shannon
from shiftcal.augment.bands import swap_amplitude, swap_high_band
from shiftcal.augment.crop_flip import crop_and_flip, crop_flip
from shiftcal.augment.mixup import Mixed, mixup, mixup_loss
from shiftcal.augment.operations import OPERATIONS
from shiftcal.augment.perturb import Perturbation


def unchanged(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return the images as they are."""
    return images


def _unchanged_rows(images: Tensor, generator: torch.Generator | None, *, rows_of: Rows | None = None) -> Tensor:
    return unchanged(images, generator)


AUGMENTATIONS: dict[str, Callable[..., Tensor]] = {"none": _unchanged_rows, "crop_flip": crop_and_flip}

__all__ = [
    "AUGMENTATIONS",
    "OPERATIONS",
    "Mixed",
    "Perturbation",
    "augmix",
    "augmix_loss",
    "crop_flip",
    "jensen_shannon",
    "mixup",
    "mixup_loss",
    "swap_amplitude",
    "swap_high_band",
    "unchanged",
]
