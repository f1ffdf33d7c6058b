"""What a camera's processing and storage do to an image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from shiftcal.filtering import dct_low_pass
from shiftcal.shifts.corruptions.blur import smooth
from shiftcal.shifts.corruptions.setting import Images, Setting, Stored, in_unit

_ELASTIC, _WARP = 40, 41  # streams of random numbers


@in_unit
def contrast(x: Images, factor: float, _: Setting) -> Images:
    """Shrink towards the mean of each channel, (x − x̄)·c + x̄ (Hendrycks & Dietterich, ICLR 2019)."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean).mul_(factor).add_(mean)


@in_unit
def saturate(x: Images, amount: Sequence[float], _: Setting) -> Images:
    """Scale and raise the saturation channel of HSV (Hendrycks & Dietterich, ICLR 2019)."""
    factor, offset = amount
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    span = value - least
    # A channel is V·(1 − S·k), where k, 0 for the strongest and 1 for the weakest, is the hue; grey counts as red.
    k = torch.where(span > 0, (value - x) / span.clamp_min(1e-12), x.new_tensor([0.0, 1.0, 1.0])[:, None, None])
    saturation = span / value.clamp_min(1e-12)
    return value * (1 - (saturation * factor + offset).clamp(0, 1) * k)


def pixelate(x: Stored, scale: float, _: Setting) -> Stored:
    """Shrink by averaging over boxes and enlarge by repetition, as Pillow does (Hendrycks & Dietterich, ICLR 2019)."""
    height, width = x.shape[-2:]
    rows, columns = (_box_matrix(size, int(size * scale)).to(x.device) for size in (height, width))
    # Pillow shrinks rows first and rounds to 8 bits in between.
    levels = (x.float() @ columns.T).add_(0.5).floor_()
    levels = (rows @ levels).add_(0.5).to(torch.uint8)
    row = torch.arange(height, device=x.device).add(0.5).mul(levels.shape[2] / height).long()
    column = torch.arange(width, device=x.device).add(0.5).mul(levels.shape[3] / width).long()
    return levels.index_select(3, column).index_select(2, row)


@lru_cache(maxsize=64)
def _box_matrix(size: int, smaller: int) -> Float[Tensor, "smaller size"]:
    """Average over the pixels whose centres lie in a box around each new pixel's centre."""
    scale = size / smaller
    centre = (torch.arange(smaller, dtype=torch.float64)[:, None] + 0.5) * scale
    distance = (torch.arange(size, dtype=torch.float64) + 0.5 - centre) / scale
    inside = ((distance > -0.5) & (distance <= 0.5)).double()
    return (inside / inside.sum(1, keepdim=True)).float()


@in_unit
def elastic_transform(x: Images, amount: Sequence[float], setting: Setting) -> Images:
    """Move three points at random, then every pixel a little (Hendrycks & Dietterich, ICLR 2019)."""
    height, width = x.shape[-2:]
    slip = 244 / 224 if setting.constants == "imagenet" else 1.0  # the generator's for large images says 244
    strength, sigma, reach = (slip * min(height, width) * value for value in amount)
    x = _sample(x, *_affine_grid(setting, height, width, reach), mirror_centres=True)
    if strength == 0:
        return x
    shifts = smooth(setting.draws.between(_ELASTIC, -1.0, 1.0, 2, height, width), sigma, truncate=3.0, edge="reflect")
    column = torch.arange(width, device=x.device) + strength * shifts[:, 0]
    row = torch.arange(height, device=x.device)[:, None] + strength * shifts[:, 1]
    return _sample(x, column, row, mirror_centres=False)


def _affine_grid(setting: Setting, height: int, width: int, reach: float) -> tuple[Tensor, Tensor]:
    """Find the source of each pixel under the affine map that moves three points of the middle by up to `reach`."""
    draws, device = setting.draws, setting.draws.indices.device
    side = min(height, width) // 3
    corners = torch.tensor([[side, side], [side, -side], [-side, -side]], dtype=torch.float64, device=device)
    corners += torch.tensor([width // 2, height // 2], dtype=torch.float64, device=device)
    moved = corners + draws.between(_WARP, -reach, reach, 3, 2)
    with_one = torch.cat([moved, torch.ones_like(moved[:, :, :1])], dim=2)
    back = torch.linalg.solve(with_one, corners.expand_as(moved)).float()  # (x, y, 1) @ back is the source
    column = torch.arange(width, device=device)
    row = torch.arange(height, device=device)[:, None]
    x, y = (
        back[:, 0, i, None, None] * column + back[:, 1, i, None, None] * row + back[:, 2, i, None, None] for i in (0, 1)
    )
    return x, y


def _sample(x: Tensor, column: Tensor, row: Tensor, *, mirror_centres: bool) -> Tensor:
    """Interpolate at (column, row), mirrored at the centres of the edge pixels or at their outer edges."""
    height, width = x.shape[-2:]
    if mirror_centres:
        grid = torch.stack([column * (2 / max(width - 1, 1)) - 1, row * (2 / max(height - 1, 1)) - 1], dim=-1)
    else:
        grid = torch.stack([(column + 0.5) * (2 / width) - 1, (row + 0.5) * (2 / height) - 1], dim=-1)
    sampled: Tensor = torch.nn.functional.grid_sample(x, grid, padding_mode="reflection", align_corners=mirror_centres)
    return sampled


def jpeg_compression(x: Stored, quality: float, _: Setting) -> Stored:
    """Compress as a JPEG codec at default settings: 4:2:0 chroma (ITU-T T.81; libjpeg's arithmetic)."""
    return dct_low_pass(x, int(quality), subsampling="4:2:0")
