"""The nine operations of AugMix, each as Pillow does it, for a whole batch at once with one magnitude per image.

Five of them are affine maps, which a batch in which every image has its own takes as one resampling; four are
tables of 256 tones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

Images = UInt8[Tensor, "batch 3 height width"]
Magnitude = Float[Tensor, " batch"]


def affine(
    images: Images,
    *,
    degrees: Magnitude | None = None,
    shear_x: Magnitude | None = None,
    shear_y: Magnitude | None = None,
    shift_x: Magnitude | None = None,
    shift_y: Magnitude | None = None,
) -> Images:
    """Resample as `PIL.Image.transform(AFFINE, BILINEAR)` does: output (x, y) takes input A·(x, y) + b; black outside.

    At most one of the maps is meant to be other than zero for an image: they are added, not composed. Pillow computes
    in float64 and cuts fractions off; in float32 about one value in five hundred differs by one grey level.
    """
    height, width = images.shape[-2:]
    zero = torch.zeros(len(images), device=images.device)
    angle = torch.deg2rad(zero if degrees is None else degrees)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    shear_x, shear_y, shift_x, shift_y = (
        (zero if value is None else value)[:, None, None] for value in (shear_x, shear_y, shift_x, shift_y)
    )
    # Pixel centres are at halves. Rotation is about the image's centre, the shears about its corner.
    x = torch.arange(width, device=images.device) + 0.5
    y = torch.arange(height, device=images.device)[:, None] + 0.5
    u, v = x - width / 2, y - height / 2
    source_x = cos * u - sin * v + width / 2 + shear_x * y + shift_x
    source_y = sin * u + cos * v + height / 2 + shear_y * x + shift_y
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    grid = torch.stack([source_x * (2 / width) - 1, source_y * (2 / height) - 1], dim=-1)
    values = torch.nn.functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    # The small term keeps what is a whole number from being cut to the one below it.
    return (values + 1 / 512).to(torch.uint8) * inside[:, None]


def look_up(images: Images, tables: Int[Tensor, "batch channels 256"]) -> Images:
    """Replace each tone by the entry of its image's table."""
    tables = tables.to(torch.uint8).expand(len(images), 3, 256)
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def tones(images: Images) -> Int[Tensor, " 256"]:
    """Return the tones 0..255, the table that changes nothing."""
    return torch.arange(256, device=images.device)


def autocontrast_table(images: Images) -> Int[Tensor, "batch 3 256"]:
    """Stretch each channel so that its darkest tone is 0 and its lightest 255."""
    flat = images.flatten(2)
    low, high = (bound.double()[:, :, None] for bound in (flat.amin(2), flat.amax(2)))
    # In float64 and in Pillow's order, since fractions are cut off; `255.0 / x` would be 255 times a rounded 1 / x.
    scale = torch.full_like(low, 255.0) / (high - low).clamp(min=1)
    stretched = (tones(images) * scale + -low * scale).clamp(0, 255).long()
    return torch.where(high > low, stretched, tones(images))


def equalize_table(images: Images) -> Int[Tensor, "batch 3 256"]:
    """Spread each channel's tones so that all are equally frequent."""
    flat = images.flatten(2)
    count = torch.zeros(len(images), 3, 256, dtype=torch.int64, device=images.device)
    count.scatter_add_(2, flat.long(), torch.ones((), dtype=torch.int64, device=images.device).expand(flat.shape))
    of_lightest = count.gather(2, flat.amax(2).long()[:, :, None])
    step = (flat.shape[2] - of_lightest) // 255
    below = count.cumsum(2) - count
    spread = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, spread, tones(images))


def posterize_table(images: Images, bits: Magnitude) -> Int[Tensor, "batch 1 256"]:
    """Keep the highest bits of each tone."""
    width = torch.bitwise_left_shift(torch.ones_like(bits, dtype=torch.int64), 8 - bits.long())[:, None, None]
    return tones(images) // width * width


def solarize_table(images: Images, threshold: Magnitude) -> Int[Tensor, "batch 1 256"]:
    """Invert the tones from a threshold on."""
    values = tones(images)
    return torch.where(values < threshold[:, None, None], values, 255 - values)


OPERATIONS: dict[str, Callable[[Images, Magnitude], Images]] = {
    "autocontrast": lambda images, _: look_up(images, autocontrast_table(images)),
    "equalize": lambda images, _: look_up(images, equalize_table(images)),
    "posterize": lambda images, bits: look_up(images, posterize_table(images, bits)),
    "solarize": lambda images, threshold: look_up(images, solarize_table(images, threshold)),
    "rotate": lambda images, degrees: affine(images, degrees=degrees),
    "shear_x": lambda images, factor: affine(images, shear_x=factor),
    "shear_y": lambda images, factor: affine(images, shear_y=factor),
    "translate_x": lambda images, pixels: affine(images, shift_x=pixels),
    "translate_y": lambda images, pixels: affine(images, shift_y=pixels),
}
