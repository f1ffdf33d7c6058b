"""Corruptions: clean images in, shifted images out, as the common-corruptions benchmark makes them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from shiftcal._checks import unknown, wrong
from shiftcal.corruptions.blur import gaussian_blur
from shiftcal.corruptions.digital import brightness, contrast, jpeg_compression
from shiftcal.corruptions.noise import gaussian_noise
from shiftcal.filtering import check_images

SEVERITIES = (1, 2, 3, 4, 5)
CONSTANTS = ("cifar", "tiny-imagenet", "imagenet")

IMPLEMENTED: dict[str, Callable[[Tensor, float, int, Tensor], Tensor]] = {
    "gaussian_noise": gaussian_noise,
    "gaussian_blur": gaussian_blur,
    "contrast": contrast,
    "brightness": brightness,
    "jpeg_compression": jpeg_compression,
}


def corrupt(
    images: UInt8[Tensor, "batch 3 height width"],
    name: str,
    severity: int,
    *,
    seed: int = 0,
    constants: str = "cifar",
    indices: Int[Tensor, " batch"] | None = None,
) -> UInt8[Tensor, "batch 3 height width"]:
    """Corrupt images as the common-corruptions benchmark does (Hendrycks & Dietterich, ICLR 2019).

    Args:
        images: RGB images.
        name: gaussian_noise, gaussian_blur, contrast, brightness or jpeg_compression.
        severity: 1 (mild) to 5 (strong).
        seed: Seed of the random corruptions.
        constants: Whose severities: "cifar" (32×32), "tiny-imagenet" (64×64) or "imagenet" (224×224).
        indices: Each image's position in its data set, 0..N−1 by default. An image's randomness depends on the
            seed and its index alone, not on its batch.

    Example:
        >>> images = torch.full((2, 3, 32, 32), 100, dtype=torch.uint8)
        >>> corrupt(images, "brightness", 5)[0, 0, 0, 0]
        tensor(176, dtype=torch.uint8)
    """
    check_images(images)
    if name not in IMPLEMENTED:
        raise unknown("name", name, IMPLEMENTED)
    if severity not in SEVERITIES or not isinstance(severity, int):
        raise wrong("severity", "an integer in 1..5", severity)
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise wrong("seed", "an integer in 0..2³²−1", seed)
    if constants not in CONSTANTS:
        raise unknown("constants", constants, CONSTANTS)
    if indices is None:
        indices = torch.arange(len(images), device=images.device)
    elif indices.shape != images.shape[:1] or indices.is_floating_point():
        raise wrong("indices", f"{len(images)} integers", f"{indices.dtype} {list(indices.shape)}")
    if len(images) == 0:
        return images.clone()
    amount = _constants()[constants][name][severity - 1]
    with torch.autocast(images.device.type, enabled=False):  # half precision would lose whole grey levels
        corrupted = IMPLEMENTED[name](images.float() / 255, amount, seed, indices.to(images.device))
    # Truncation, not rounding: the benchmark's generators cast. The margin undoes float32's error at whole levels.
    return (corrupted.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)


@cache
def _constants() -> dict[str, dict[str, list[float]]]:
    return tomllib.loads((files("shiftcal.corruptions") / "constants.toml").read_text(encoding="utf-8"))


__all__ = ["CONSTANTS", "IMPLEMENTED", "SEVERITIES", "corrupt"]
