"""Corruptions: clean images in, shifted images out, as the common-corruptions benchmark makes them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import unknown, wrong
from shiftcal.filtering import check_images
from shiftcal.shifts.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from shiftcal.shifts.corruptions.digital import contrast, elastic_transform, jpeg_compression, pixelate, saturate
from shiftcal.shifts.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from shiftcal.shifts.corruptions.random import Draws
from shiftcal.shifts.corruptions.setting import Setting
from shiftcal.shifts.corruptions.spatter import spatter
from shiftcal.shifts.corruptions.textures import frost_source
from shiftcal.shifts.corruptions.weather import brightness, fog, frost, snow

SEVERITIES = (1, 2, 3, 4, 5)
CONSTANTS = ("cifar", "tiny-imagenet", "imagenet")

# In the benchmark's order.
_FUNCTIONS: dict[str, Callable[[Tensor, Any, Setting], Tensor]] = {
    function.__name__: function
    for function in (
        *(gaussian_noise, shot_noise, impulse_noise),
        *(defocus_blur, glass_blur, motion_blur, zoom_blur),
        *(snow, frost, fog, brightness),
        *(contrast, elastic_transform, pixelate, jpeg_compression),
        *(speckle_noise, gaussian_blur, spatter, saturate),
    )
}
CORRUPTIONS: tuple[str, ...] = tuple(_FUNCTIONS)[:15]
EXTRA_CORRUPTIONS: tuple[str, ...] = tuple(_FUNCTIONS)[15:]
SMALLEST = 16
# Values worked on at a time: on a CPU what its caches hold, elsewhere what keeps memory within bounds.
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_CHUNK = {"cpu": 1 << 20}
_CHUNK_ELSEWHERE = 1 << 26


@takes_arrays
def corrupt(
    images: UInt8[Tensor, "batch 3 height width"],
    name: str,
    severity: SupportsIndex,
    *,
    seed: int = 0,
    constants: str = "cifar",
    indices: Int[Tensor, " batch"] | None = None,
    frost: str | Path | None = None,
) -> UInt8[Tensor, "batch 3 height width"]:
    """Corrupt images as the common-corruptions benchmark does (Hendrycks & Dietterich, ICLR 2019).

    Args:
        images: RGB images, at least 16×16.
        name: One of `CORRUPTIONS` or `EXTRA_CORRUPTIONS`.
        severity: 1 (mild) to 5 (strong).
        seed: Seed of the random corruptions.
        constants: Whose severities: "cifar" (32×32), "tiny-imagenet" (64×64) or "imagenet" (224×224).
        indices: Each image's position in its data set, 0..N−1 by default. An image's randomness depends on the
            seed and its index alone, not on its batch.
        frost: A folder with photographs of frost, or "drawn". By default the photographs of the `imagecorruptions`
            distribution where it is installed (extra `frost`), else drawings; `frost_source` tells which.

    Example:
        >>> images = torch.full((2, 3, 32, 32), 100, dtype=torch.uint8)
        >>> corrupt(images, "brightness", 5)[0, 0, 0, 0]
        tensor(176, dtype=torch.uint8)
    """
    check_images(images)
    check_name("name", name)
    if isinstance(severity, bool) or not isinstance(severity, SupportsIndex) or int(severity) not in SEVERITIES:
        raise wrong("severity", "an integer in 1..5", severity)
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise wrong("seed", "an integer in 0..2³²−1", seed)
    if constants not in CONSTANTS:
        raise unknown("constants", constants, CONSTANTS)
    if min(images.shape[-2:]) < SMALLEST:
        raise wrong("images", f"at least {SMALLEST}×{SMALLEST}", list(images.shape))
    if indices is None:
        indices = torch.arange(len(images), device=images.device)
    elif indices.shape != images.shape[:1] or indices.dtype not in _INTEGERS:
        raise wrong("indices", f"{len(images)} integers", f"{indices.dtype} {list(indices.shape)}")
    if len(images) == 0:
        return images.clone()
    function, amount = _FUNCTIONS[name], _constants()[constants][name][int(severity) - 1]
    indices, folder = indices.to(images.device), None if frost is None else str(frost)
    size = max(1, _CHUNK.get(images.device.type, _CHUNK_ELSEWHERE) // images[0].numel())
    parts = []
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):  # half precision would lose grey levels
        for part, index in zip(images.split(size), indices.split(size), strict=True):
            parts.append(function(part.contiguous(), amount, Setting(Draws(int(seed), index), constants, folder)))
    return torch.cat(parts)


def check_name(parameter: str, name: str) -> None:
    """Raise unless there is a corruption of this name."""
    if name not in _FUNCTIONS:
        raise unknown(parameter, name, _FUNCTIONS)


def named(words: Sequence[str]) -> tuple[str, ...]:
    """Write out the groups: "all", the 15 of the benchmark, and "extra", the 4 others; each name once.

    Example:
        >>> named(["fog", "extra", "fog"])
        ('fog', 'speckle_noise', 'gaussian_blur', 'spatter', 'saturate')
    """
    groups = {"all": CORRUPTIONS, "extra": EXTRA_CORRUPTIONS}
    return tuple(dict.fromkeys(name for word in words for name in groups.get(word, (word,))))


@cache
def _constants() -> dict[str, dict[str, list[Any]]]:
    return tomllib.loads((files("shiftcal.shifts.corruptions") / "constants.toml").read_text(encoding="utf-8"))


__all__ = [
    "CONSTANTS",
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "SEVERITIES",
    "SMALLEST",
    "corrupt",
    "frost_source",
    "named",
]
