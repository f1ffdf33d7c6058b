"""What a camera's processing and storage do to an image."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal.filtering import (
    BLOCK,
    from_blocks,
    levels_to_rgb,
    quantisation_tables,
    quantise,
    rgb_to_levels,
    to_blocks,
)


def contrast(
    x: Float[Tensor, "batch 3 height width"], factor: float, seed: int, indices: Int[Tensor, " batch"]
) -> Float[Tensor, "batch 3 height width"]:
    """Shrink towards the mean of each channel, (x − x̄)·c + x̄ (Hendrycks & Dietterich, ICLR 2019)."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * factor + mean


def brightness(
    x: Float[Tensor, "batch 3 height width"], amount: float, seed: int, indices: Int[Tensor, " batch"]
) -> Float[Tensor, "batch 3 height width"]:
    """Add to the value channel of HSV (Hendrycks & Dietterich, ICLR 2019)."""
    value = x.amax(1, keepdim=True)
    brighter = (value + amount).clamp(0, 1)
    # With hue and saturation fixed, RGB is proportional to the value; black has no hue and turns grey.
    return torch.where(value > 0, x * (brighter / value.clamp_min(1e-12)), brighter)


def jpeg_compression(
    x: Float[Tensor, "batch 3 height width"], quality: float, seed: int, indices: Int[Tensor, " batch"]
) -> Float[Tensor, "batch 3 height width"]:
    """Compress as a JPEG codec at default settings: 4:2:0 chroma (ITU-T T.81; libjpeg's arithmetic)."""
    height, width = x.shape[2:]
    levels = rgb_to_levels(_pad(x * 255))
    tables = quantisation_tables(torch.full((len(x),), int(quality), device=x.device))
    luma = _compress(levels[:, :1], tables[:, :1])
    chroma = _compress(_halve(levels[:, 1:]), tables[:, 1:])
    chroma = chroma[..., : -(-height // 2), : -(-width // 2)]
    levels = torch.cat([luma[..., :height, :width], _double(chroma)[..., :height, :width]], dim=1)
    return levels_to_rgb(levels).float() / 255


def _compress(levels: Tensor, tables: Tensor) -> Tensor:
    blocks = quantise(to_blocks(levels.to(torch.int8)).float(), tables).to(torch.int8)
    return from_blocks(blocks, *levels.shape[2:]).float()


def _pad(planes: Tensor) -> Tensor:
    """Complete blocks to the right, but below only a pair of rows: libjpeg completes those after halving the chroma."""
    below, right = -planes.shape[2] % 2, -planes.shape[3] % (2 * BLOCK)
    return torch.nn.functional.pad(planes, (0, right, 0, below), mode="replicate")


def _halve(levels: Tensor) -> Tensor:
    """Average 2×2 levels, rounded with a bias of 1/4 and 2/4 in turn along a row, as libjpeg does."""
    n, c, height, width = levels.shape
    total = levels.view(n, c, height // 2, 2, width // 2, 2).sum((3, 5))
    bias = 1 + torch.arange(width // 2, device=levels.device) % 2
    return ((total + bias) / 4).floor()


def _double(levels: Tensor) -> Tensor:
    """Upsample by the triangle filter (3/4 near, 1/4 far) in both directions, as libjpeg's "fancy" upsampling does."""
    tall = _interleave(levels, dim=2)
    wide = _interleave(tall, dim=3)
    bias = torch.tensor([8.0, 7.0], device=levels.device).repeat(levels.shape[3])
    return ((wide + bias) / 16).floor()


def _interleave(levels: Tensor, dim: int) -> Tensor:
    size = levels.shape[dim]
    position = torch.arange(size, device=levels.device)
    before = levels.index_select(dim, (position - 1).clamp(min=0))
    after = levels.index_select(dim, (position + 1).clamp(max=size - 1))
    return torch.stack([3 * levels + before, 3 * levels + after], dim=dim + 1).flatten(dim, dim + 1)
