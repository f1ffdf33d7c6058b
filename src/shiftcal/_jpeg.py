"""JPEG's arithmetic on batches of images: colours, 8×8 blocks, the DCT, its quantisation, chroma of half the size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import ParamSpec

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, pad

P = ParamSpec("P")
BLOCK = 8

# ITU-T T.81, Annex K, tables K.1 (luminance) and K.2 (chrominance).
_LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
# JFIF, full range: rows Y, Cb, Cr; chroma is centred at 128.
_RGB_TO_YCBCR = (
    (0.299, 0.587, 0.114),
    (-0.168735892, -0.331264108, 0.5),
    (0.5, -0.418687589, -0.081312411),
)
_YCBCR_TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136286, -0.714136286), (1.0, 1.772, 0.0))


def _kept(make: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Keep constants on their device, where each copy would wait for what it has to do; traced code makes its own."""
    cached: Callable[..., Tensor] = lru_cache(maxsize=16)(make)  # some depend on the size of images

    @wraps(make)
    def get(*arguments: P.args, **options: P.kwargs) -> Tensor:
        return make(*arguments, **options) if torch.compiler.is_compiling() else cached(*arguments, **options)

    return get


@_kept
def _constant(values: tuple[object, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


def quantisation_tables(quality: Int[Tensor, " batch"]) -> Float[Tensor, "batch 3 64"]:
    """Look up the tables of qualities 1..100; rows Y, Cb, Cr."""
    return _all_tables(quality.device)[quality - 1]


@_kept
def _all_tables(device: torch.device) -> Float[Tensor, "100 3 64"]:
    """Scale the standard tables to every quality by the IJG rule, in integers."""
    standard = torch.tensor((_LUMINANCE, _CHROMINANCE, _CHROMINANCE), device=device).flatten(1)
    quality = torch.arange(1, 101, device=device)
    scale = torch.where(quality < 50, 5000 // quality, 200 - 2 * quality)
    return ((standard * scale[:, None, None] + 50) // 100).clamp(1, 255).float()


def quantise(
    levels: Float[Tensor, "batch channels blocks 64"], tables: Float[Tensor, "batch channels 64"]
) -> Float[Tensor, "batch channels blocks 64"]:
    """Round the DCT coefficients of every block to multiples of the table; 8-bit levels around 0 in and out."""
    dct = _dct_matrix(levels.device)
    step = tables[:, :, None]
    coefficients = (levels @ dct.T).div_(step).round_().mul_(step)
    return (coefficients @ dct).round_().clamp_(-128, 127)


@_kept
def _dct_matrix(device: torch.device) -> Float[Tensor, "64 64"]:
    """Build the orthonormal 2-D DCT-II of a flattened 8×8 block as one matrix."""
    k = torch.arange(BLOCK, dtype=torch.float64)
    one = torch.cos((2 * k + 1) * k[:, None] * math.pi / (2 * BLOCK)) * math.sqrt(2 / BLOCK)
    one[0] = math.sqrt(1 / BLOCK)
    return torch.kron(one, one).float().to(device)


def rgb_to_levels(rgb: Float[Tensor, "batch 3 *pixels"]) -> Float[Tensor, "batch 3 *pixels"]:
    """Convert to JFIF YCbCr, rounded to 8 bits as a codec does, all three channels centred at 0."""
    levels = _mix_channels(rgb, _RGB_TO_YCBCR, offset=(-128.0, 0.0, 0.0))
    return levels.round_().clamp_(-128, 127)


def levels_to_rgb(levels: Float[Tensor, "batch 3 *pixels"]) -> UInt8[Tensor, "batch 3 *pixels"]:
    """Convert centred YCbCr levels back to RGB, rounded and clamped to uint8."""
    rgb = _mix_channels(levels, _YCBCR_TO_RGB, offset=(128.0, 128.0, 128.0))
    return rgb.round_().clamp_(0, 255).to(torch.uint8)


def _mix_channels(values: Tensor, matrix: tuple[tuple[float, ...], ...], offset: tuple[float, ...]) -> Tensor:
    weights = _constant(matrix, values.device).expand(len(values), 3, 3)
    shift = _constant(offset, values.device)[:, None]
    return torch.baddbmm(shift, weights, values.flatten(2)).view_as(values)


def to_blocks(planes: Shaped[Tensor, "batch channels height width"]) -> Shaped[Tensor, "batch channels blocks 64"]:
    """Cut planes of bytes into flattened 8×8 blocks, padding at the bottom and the right by edge replication."""
    n, c, height, width = planes.shape
    rows, columns = -(-height // BLOCK), -(-width // BLOCK)
    if height % BLOCK or width % BLOCK:
        y = torch.arange(rows * BLOCK, device=planes.device).clamp(max=height - 1)
        x = torch.arange(columns * BLOCK, device=planes.device).clamp(max=width - 1)
        planes = planes[:, :, y[:, None], x]
    # A block's row of 8 bytes moves as one 64-bit word, five times faster than byte by byte.
    # The copy is aligned whatever the input is a view of.
    aligned = planes.clone(memory_format=torch.contiguous_format)
    words = aligned.view(torch.int64).view(n, c, rows, BLOCK, columns).transpose(3, 4)
    return words.flatten().view(planes.dtype).view(n, c, rows * columns, BLOCK**2)


def from_blocks(
    blocks: Shaped[Tensor, "batch channels blocks 64"], height: int, width: int
) -> Shaped[Tensor, "batch channels height width"]:
    """Put flattened 8×8 blocks of bytes together again and crop the padding."""
    n, c = blocks.shape[:2]
    rows, columns = -(-height // BLOCK), -(-width // BLOCK)
    words = blocks.view(torch.int64).view(n, c, rows, columns, BLOCK).transpose(3, 4)
    planes = words.flatten().view(blocks.dtype).view(n, c, rows * BLOCK, columns * BLOCK)
    return planes[..., :height, :width].contiguous()


def with_halved_chroma(
    images: UInt8[Tensor, "batch 3 height width"], tables: Float[Tensor, "batch 3 64"]
) -> UInt8[Tensor, "batch 3 height width"]:
    """Quantise the luma at full and the chroma at half resolution, with libjpeg's arithmetic."""
    height, width = images.shape[2:]
    levels = rgb_to_levels(_pad(images.contiguous().float()))  # another memory order is summed otherwise
    planes = (levels[:, :1], _halve(levels[:, 1:]))
    luma, chroma = _quantise_planes(planes, tables.split([1, 2], dim=1))
    chroma = chroma[..., : -(-height // 2), : -(-width // 2)]
    return levels_to_rgb(torch.cat([luma[..., :height, :width], _double(chroma)[..., :height, :width]], dim=1))


def _quantise_planes(planes: Sequence[Tensor], tables: Sequence[Tensor]) -> list[Tensor]:
    """Quantise planes of several sizes, all their blocks at once, each with the table of its channel."""
    blocks = [to_blocks(one.to(torch.int8)) for one in planes]
    counts = [one.shape[1] * one.shape[2] for one in blocks]
    own = torch.cat([t[:, :, None].expand_as(b).flatten(1, 2) for t, b in zip(tables, blocks, strict=True)], dim=1)
    levels = torch.cat([one.flatten(1, 2) for one in blocks], dim=1).float()
    quantised = quantise(levels[:, :, None], own).to(torch.int8)
    parts = quantised.split(counts, dim=1)
    return [
        from_blocks(part.reshape(b.shape), *p.shape[2:]).float()
        for part, b, p in zip(parts, blocks, planes, strict=True)
    ]


def _pad(planes: Tensor) -> Tensor:
    """Complete blocks to the right, but below only a pair of rows: libjpeg completes those after halving the chroma."""
    below, right = -planes.shape[2] % 2, -planes.shape[3] % (2 * BLOCK)
    return pad(planes, (0, right, 0, below), mode="replicate")


def _halve(levels: Tensor) -> Tensor:
    """Average 2×2 levels, rounded with a bias of 1/4 and 2/4 in turn along a row, as libjpeg does."""
    halves = avg_pool2d(levels, 2)
    return (halves + _in_turn((0.25, 0.5), halves.shape[3], levels.device)).floor()


@_kept
def _in_turn(values: tuple[float, ...], length: int, device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).repeat(-(-length // len(values)))[:length]


def _double(levels: Tensor) -> Tensor:
    """Upsample by the triangle filter (3/4 near, 1/4 far) in both directions, as libjpeg's "fancy" upsampling does."""
    doubled = interpolate(levels, scale_factor=2, mode="bilinear")  # sixteenths of a byte's range: exact
    return (doubled + _in_turn((0.5, 7 / 16), doubled.shape[3], levels.device)).floor()
