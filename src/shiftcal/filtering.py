"""Low-pass filters on batches of images: JPEG's block DCT and quantisation (FGR), and a Gaussian in the spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Literal, ParamSpec, SupportsIndex

import torch
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from shiftcal._errors import wrong

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


Subsampling = Literal["4:4:4", "4:2:0"]
P = ParamSpec("P")


def dct_low_pass(
    images: UInt8[Tensor, "batch 3 height width"],
    quality: SupportsIndex | Int[Tensor, " batch"],
    *,
    subsampling: Subsampling = "4:4:4",
) -> UInt8[Tensor, "batch 3 height width"]:
    """Low-pass filter images by quantising their 8×8 DCT blocks (FGR paper, section 4.1).

    With F the orthonormal 2-D DCT-II of a block and Q_λ the JPEG table of quality λ, the block becomes
    DCT⁻¹(Q_λ · round(F / Q_λ)), per channel of YCbCr. It is what a JPEG codec does to pixels, its roundings to
    8 bits included: the reference is Pillow at `subsampling=0`, or at its default for "4:2:0".

    Args:
        images: RGB images. Sides that are no multiple of 8 are padded by edge replication and cropped after.
        quality: λ in 1..100, one for all images or one for each. Lower removes more. A tensor on another device
            than the CPU is clamped to 1..100 instead of checked, since looking at it would stall the device.
        subsampling: "4:4:4" keeps the chroma's resolution, as the paper has it; "4:2:0" halves it by 2×2 means and
            enlarges it by libjpeg's triangle filter, as the paper's released code does.

    Example:
        >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
        >>> dct_low_pass(images, quality=15).shape
        torch.Size([4, 3, 32, 32])
    """
    check_images(images)
    qualities = _check_quality(quality, images)
    if subsampling not in ("4:4:4", "4:2:0"):
        raise wrong("subsampling", "'4:4:4' or '4:2:0'", repr(subsampling))
    if len(images) == 0:
        return images.clone()
    with torch.autocast(images.device.type, enabled=False):  # half precision would lose whole grey levels
        tables = quantisation_tables(qualities)
        if subsampling == "4:2:0":
            return _with_halved_chroma(images, tables)
        levels = rgb_to_levels(to_blocks(images).float())
        filtered = levels_to_rgb(quantise(levels, tables))
    return from_blocks(filtered, *images.shape[-2:])


def fft_low_pass(
    images: UInt8[Tensor, "batch 3 height width"], ratio: float | Float[Tensor, " batch"]
) -> UInt8[Tensor, "batch 3 height width"]:
    """Low-pass filter images by a Gaussian in the spectrum, the second filter of the FGR authors' released code.

    Per channel, the spectrum is multiplied by exp(−d²/(2·(r/1.5)²)) with d the distance to the zero frequency and
    r = max(ratio · min(H, W)/2, 1); the absolute value of the inverse is cut to 8 bits.

    Args:
        images: RGB images.
        ratio: Radius of the pass band relative to half the shorter side, one for all images or one for each. Lower
            removes more.

    Example:
        >>> images = torch.full((4, 3, 32, 32), 7, dtype=torch.uint8)
        >>> fft_low_pass(images, ratio=0.6).unique()
        tensor([7], dtype=torch.uint8)
    """
    check_images(images)
    ratios = _check_ratio(ratio, images)
    if len(images) == 0:
        return images.clone()
    height, width = images.shape[-2:]
    with torch.autocast(images.device.type, enabled=False):
        y, x = (
            torch.fft.fftfreq(size, 1 / size, dtype=torch.float64, device=images.device) for size in (height, width)
        )
        squared_distance = y[:, None] ** 2 + x**2
        r = (ratios * min(height, width) / 2).clamp_min(1.0)
        mask = torch.exp(-squared_distance / (2 * (r[:, None, None] / 1.5) ** 2))
        # In float64: a level that stays as it is must not fall to the one below when fractions are cut off.
        filtered: Tensor = torch.fft.ifft2(torch.fft.fft2(images.double()) * mask[:, None]).abs()
    return (filtered + 1e-9).clamp(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class LowPassPolicy:
    """Which share of a set is filtered in an epoch, by what and how strongly (FGR paper, section 4.1).

    Attributes:
        ratio: The share ρ, in [0, 1).
        strengths: What each filtered image draws its own from: qualities λ for "dct", radii for "fft".
        filter: "dct": `dct_low_pass`; "fft": `fft_low_pass`.
        subsampling: The chroma of `dct_low_pass`.
        redraw: Whether the share is drawn anew each epoch, or once for all.
        after_augment: Whether images are filtered after crop and flip, or as they are stored.
    """

    ratio: float = 0.05
    strengths: tuple[float, ...] = (15, 18, 25)
    filter: Literal["dct", "fft"] = "dct"
    subsampling: Subsampling = "4:4:4"
    redraw: bool = True
    after_augment: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < 1:
            raise wrong("ratio", "in [0, 1)", self.ratio)
        if self.filter not in ("dct", "fft"):
            raise wrong("filter", "'dct' or 'fft'", repr(self.filter))

    def __call__(
        self, images: UInt8[Tensor, "n 3 height width"], strength: Tensor
    ) -> UInt8[Tensor, "n 3 height width"]:
        """Filter images, each with its strength."""
        if self.filter == "fft":
            return fft_low_pass(images, strength)
        return dct_low_pass(images, strength.long(), subsampling=self.subsampling)


def check_images(images: Tensor) -> None:
    """Raise unless images are uint8 [N, 3, H, W]."""
    if images.dtype != torch.uint8:
        raise wrong("images", "uint8", images.dtype)
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
        raise wrong("images", "of shape [N, 3, H, W]", list(images.shape))


def _check_quality(quality: SupportsIndex | Tensor, images: Tensor) -> Int[Tensor, " batch"]:
    if isinstance(quality, Tensor):
        if quality.is_floating_point() or quality.dtype == torch.bool:
            raise wrong("quality", "an integer tensor", quality.dtype)
        if quality.shape != images.shape[:1]:
            raise wrong("quality", f"an int or of shape [{len(images)}]", list(quality.shape))
        if torch.compiler.is_compiling() or quality.device.type != "cpu":
            pass  # looking at it would break the graph, or stall the device
        elif bool(((quality < 1) | (quality > 100)).any()):
            raise wrong("quality", "in 1..100", [int(quality.min()), int(quality.max())])
        return quality.to(device=images.device, dtype=torch.int64).clamp(1, 100)
    if isinstance(quality, bool) or not isinstance(quality, SupportsIndex) or not 1 <= int(quality) <= 100:
        raise wrong("quality", "an integer in 1..100", quality)
    return torch.full((len(images),), int(quality), device=images.device)


def _check_ratio(ratio: float | Tensor, images: Tensor) -> Float[Tensor, " batch"]:
    if isinstance(ratio, Tensor):
        if not ratio.is_floating_point() or ratio.shape != images.shape[:1]:
            expected = f"a number, or floating point of shape [{len(images)}]"
            raise wrong("ratio", expected, f"{ratio.dtype} {list(ratio.shape)}")
        return ratio.to(device=images.device, dtype=torch.float64)
    if not 0 < ratio < math.inf:
        raise wrong("ratio", "positive", ratio)
    return torch.full((len(images),), float(ratio), dtype=torch.float64, device=images.device)


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


def _with_halved_chroma(
    images: UInt8[Tensor, "batch 3 height width"], tables: Float[Tensor, "batch 3 64"]
) -> UInt8[Tensor, "batch 3 height width"]:
    """Quantise the luma at full and the chroma at half resolution, with libjpeg's arithmetic."""
    height, width = images.shape[2:]
    levels = rgb_to_levels(_pad(images.float()))
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
    return torch.nn.functional.pad(planes, (0, right, 0, below), mode="replicate")


def _halve(levels: Tensor) -> Tensor:
    """Average 2×2 levels, rounded with a bias of 1/4 and 2/4 in turn along a row, as libjpeg does."""
    halves = torch.nn.functional.avg_pool2d(levels, 2)
    return (halves + _in_turn((0.25, 0.5), halves.shape[3], levels.device)).floor()


@_kept
def _in_turn(values: tuple[float, ...], length: int, device: torch.device) -> Tensor:
    return torch.tensor(values, device=device).repeat(-(-length // len(values)))[:length]


def _double(levels: Tensor) -> Tensor:
    """Upsample by the triangle filter (3/4 near, 1/4 far) in both directions, as libjpeg's "fancy" upsampling does."""
    down, across = (_triangle(size, levels.device) for size in levels.shape[2:])
    doubled = down @ levels @ across.T  # quarters of bytes and sixteenths: exact, also in TF32
    return (doubled + _in_turn((0.5, 7 / 16), doubled.shape[3], levels.device)).floor()


@_kept
def _triangle(size: int, device: torch.device) -> Float[Tensor, "twice size"]:
    """Build the triangle filter that doubles `size` values, as a matrix; the ends are repeated."""
    places = torch.arange(size, device=device)
    near = torch.eye(size, device=device)
    before, after = near[(places - 1).clamp(min=0)], near[(places + 1).clamp(max=size - 1)]
    return torch.stack([3 * near + before, 3 * near + after], dim=1).flatten(0, 1) / 4
