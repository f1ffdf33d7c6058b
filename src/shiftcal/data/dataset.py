"""What a data set is to the rest of the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Bool, Float, Int, UInt8
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

    def take(self, chosen: Bool[Tensor, " n"]) -> Split:
        """Keep the chosen samples."""
        return Split(self.images[chosen], self.targets[chosen])

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
        """Turn images in grey levels 0..255 into what a model takes, with the channel last in memory."""
        n, _, height, width = images.shape
        mean, std = (_as_row(values, width, images.device) for values in (self.mean, self.std))
        rows = images.permute(0, 2, 3, 1).reshape(-1, 3 * width)  # long rows: an innermost dimension of three is slow
        values = (rows / 255).sub_(mean).div_(std)
        return values.view(n, height, width, 3).permute(0, 3, 1, 2)


@cache
def _as_row(values: tuple[float, ...], width: int, device: torch.device) -> Float[Tensor, " row"]:
    """Repeat the channels' constants for a row of pixels; copied to a device once, since each copy waits."""
    return torch.tensor(values, device=device).repeat(width)
