"""Low-pass filters on batches of images: JPEG's block DCT and quantisation (FGR), and a Gaussian in the spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal._jpeg import (
    from_blocks,
    levels_to_rgb,
    quantisation_tables,
    quantise,
    rgb_to_levels,
    to_blocks,
    with_halved_chroma,
)

Subsampling = Literal["4:4:4", "4:2:0"]
_PART = 2**26  # bytes of images that are filtered at a time: it takes some 20 times as much memory


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
            return with_halved_chroma(images, tables)
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
        before: What is done to images before, such as crop and flip, which draw from a generator; without it they are
            filtered as they are stored.
    """

    ratio: float = 0.05
    strengths: tuple[float, ...] = (15, 18, 25)
    filter: Literal["dct", "fft"] = "dct"
    subsampling: Subsampling = "4:4:4"
    redraw: bool = True
    before: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.ratio < 1:
            raise wrong("ratio", "in [0, 1)", self.ratio)
        if self.filter not in ("dct", "fft"):
            raise wrong("filter", "'dct' or 'fft'", repr(self.filter))
        for strength in self.strengths:
            if self.filter == "dct" and strength not in range(1, 101):
                raise wrong("strengths", "integers in 1..100, for the filter 'dct'", list(self.strengths))
            if not 0 < strength < math.inf:
                raise wrong("strengths", "positive", list(self.strengths))

    def __call__(
        self, images: UInt8[Tensor, "n 3 height width"], strength: Tensor
    ) -> UInt8[Tensor, "n 3 height width"]:
        """Filter images, each with its strength."""
        if self.filter == "fft":
            return fft_low_pass(images, strength)
        return dct_low_pass(images, strength.long(), subsampling=self.subsampling)

    def prepared(self, images: Tensor, strength: Tensor, generator: torch.Generator, **where: Any) -> Tensor:
        """Do what comes before the filter, if anything does, and filter, in parts that fit into memory.

        `where`, such as which rows of a larger batch these are, is passed to `before`, which then gets all images at
        once.
        """
        before = self.before
        if before is not None and where:
            images, before = before(images, generator, **where), None
        size = max(_PART // max(images[:1].nbytes, 1), 1)
        made = [
            self(part if before is None else before(part, generator), strengths)
            for part, strengths in zip(images.split(size), strength.split(size), strict=True)
        ]
        return torch.cat(made)


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
        looks = not torch.compiler.is_compiling() and ratio.device.type == "cpu"
        if looks and not bool(((ratio > 0) & ratio.isfinite()).all()):
            raise wrong("ratio", "positive", ratio.tolist())
        return ratio.to(device=images.device, dtype=torch.float64)
    if not 0 < ratio < math.inf:
        raise wrong("ratio", "positive", ratio)
    return torch.full((len(images),), float(ratio), dtype=torch.float64, device=images.device)
