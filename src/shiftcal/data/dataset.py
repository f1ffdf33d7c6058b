"""What a data set is to the rest of the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from shiftcal._checks import wrong
from shiftcal._tensors import check_indices, check_range


@dataclass(frozen=True)
class Split:
    """Images and their classes."""

    images: UInt8[Tensor, "n 3 height width"]
    targets: Int[Tensor, " n"]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise wrong("images", "uint8 of shape [N, 3, H, W]", f"{self.images.dtype} {list(self.images.shape)}")
        check_indices(self.targets, len(self.images))

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device | str) -> Split:
        """Move to a device."""
        return Split(self.images.to(device), self.targets.to(device))


@dataclass(frozen=True)
class Dataset:
    """Training, validation and test images of one source, and the shifts that only this source can make.

    `shifts` maps a shift's name to its test sets by severity, mildest first; corruptions that work on any image are
    not listed here.
    """

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    train: Split
    validation: Split
    test: Split
    shifts: Mapping[str, tuple[Split, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split in (self.train, self.validation, self.test):
            check_range(split.targets, len(self.classes))

    def normalise(
        self, images: UInt8[Tensor, "n 3 height width"] | Float[Tensor, "n 3 height width"]
    ) -> Float[Tensor, "n 3 height width"]:
        """Turn images in grey levels 0..255 into what a model of this data set takes."""
        mean, std = _on_device(self.mean, images.device), _on_device(self.std, images.device)
        return (images.float() / 255 - mean) / std


@cache
def _on_device(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "3 1 1"]:
    """Copy constants to a device once: each copy would make the host wait."""
    return torch.tensor(values, device=device)[:, None, None]
