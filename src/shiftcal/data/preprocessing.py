"""From stored images to what a model takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Preprocessing:
    """Resize to `input_size` pixels square, where that is set, and normalise with `mean` and `std` of the channels.

    Example:
        >>> half = Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> half(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)).unique()
        tensor([1.])
    """

    mean: Channels
    std: Channels
    input_size: int | None = None

    def __call__(
        self, images: UInt8[Tensor, "n 3 height width"] | Float[Tensor, "n 3 height width"]
    ) -> Float[Tensor, "n 3 rows columns"]:
        """Turn images in grey levels 0..255 into what a model takes, in channels-last memory format."""
        if self.input_size is not None and images.shape[-2:] != (self.input_size, self.input_size):
            images = _resized(images, self.input_size)
        n, _, height, width = images.shape
        mean, std = _as_row(self.mean, width, images.device), _as_row(self.std, width, images.device)
        rows = images.permute(0, 2, 3, 1).reshape(-1, 3 * width)  # long rows: an innermost dimension of three is slow
        values = (rows / 255).sub_(mean).div_(std)
        return values.view(n, height, width, 3).permute(0, 3, 1, 2)

    def described(self) -> dict[str, Any]:
        """Return it as plain data, for a record."""
        return {"mean": list(self.mean), "std": list(self.std), "input_size": self.input_size}

    def truncated(self, images: UInt8[Tensor, "n 3 height width"]) -> UInt8[Tensor, "n 3 height width"]:
        """Normalise images in float32, undo it and cut the levels to 8 bits, by which some lose one.

        FGR's released code filters images so.
        """
        levels, channel = _truncated_levels(self.mean, self.std, images.device)
        return levels[images.long() + channel]


def _resized(images: Tensor, size: int) -> Float[Tensor, "n 3 size size"]:
    """Resize images to a square, as Pillow's bilinear resampling would but for rounding to grey levels."""
    return functional.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)


@cache
def _truncated_levels(mean: Channels, std: Channels, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return what each level of each channel becomes, one channel after the other, and where each begins."""
    centre, spread = (torch.tensor(values, device=device)[:, None] for values in (mean, std))
    values = (torch.arange(256, device=device) / 255 - centre) / spread
    levels = ((values * spread + centre).clamp(0, 1) * 255).to(torch.uint8)
    return levels.flatten(), 256 * torch.arange(3, device=device)[:, None, None]


@cache
def _as_row(values: tuple[float, ...], width: int, device: torch.device) -> Float[Tensor, " row"]:
    """Repeat the channels' constants for a row of pixels; copied to a device once, since each copy waits."""
    return torch.tensor(values, device=device).repeat(width)
