"""What a data set is to the rest of the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images and their classes."""

    images: UInt8[Tensor, "n 3 height width"]
    targets: Int[Tensor, " n"]

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

    def normalise(self, images: UInt8[Tensor, "n 3 height width"]) -> Float[Tensor, "n 3 height width"]:
        """Turn stored images into what a model of this data set takes."""
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        return (images.float() / 255 - mean) / std
