"""What lies between the camera and the scene: snow, frost, fog, light and splashes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from shiftcal.shifts.corruptions.blur import smear, zoom
from shiftcal.shifts.corruptions.setting import Images, Setting, in_unit, truncated
from shiftcal.shifts.corruptions.textures import textures

_SNOW, _SNOW_ANGLE, _FROST, _FOG = 30, 31, 32, 33  # streams of random numbers


@in_unit
def snow(x: Images, amount: Sequence[float], setting: Setting) -> Images:
    """Whiten the image and add flakes that fall within 45° of straight down (Hendrycks & Dietterich, ICLR 2019)."""
    mean, spread, factor, threshold, radius, sigma, share = amount
    flakes = setting.draws.normal(_SNOW, 1, *x.shape[-2:]).mul_(spread).add_(mean)
    flakes = zoom(flakes, factor)
    flakes = flakes.where(flakes >= threshold, 0.0).clamp_(0, 1)
    angle = setting.draws.between(_SNOW_ANGLE, -135.0, -45.0, 1)[:, 0]
    flakes = smear(truncated(flakes * 255), radius, sigma, angle).float().div_(255)
    grey = (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    whitened = torch.maximum(x, grey * 1.5 + 0.5)
    return x.lerp(whitened, 1 - share) + flakes + flakes.flip(2, 3)


@in_unit
def frost(x: Images, amount: Sequence[float], setting: Setting) -> Images:
    """Lay a random part of a photograph of frost over the image (Hendrycks & Dietterich, ICLR 2019)."""
    of_image, of_frost = amount
    height, width = x.shape[-2:]
    pixels, start, heights, widths = textures(setting.frost, setting.constants, height, width, x.device)
    u = setting.draws.uniform(_FROST, 3)
    which = (u[:, 0] * len(start)).long()
    top = (u[:, 1] * (heights[which] - height)).long()
    left = (u[:, 2] * (widths[which] - width)).long()
    row = top[:, None] + torch.arange(height, device=x.device)
    column = left[:, None] + torch.arange(width, device=x.device)
    place = start[which, None, None] + row[:, :, None] * widths[which, None, None] + column[:, None, :]
    return of_image * x + of_frost * pixels[:, place].transpose(0, 1) / 255


@in_unit
def fog(x: Images, amount: Sequence[float], setting: Setting) -> Images:
    """Mix in a cloud, a plasma fractal (Hendrycks & Dietterich, ICLR 2019)."""
    weight, decay = amount
    height, width = x.shape[-2:]
    cloud = plasma(setting, _FOG, 1 << (max(height, width) - 1).bit_length(), decay)[:, None, :height, :width]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + weight * cloud) * brightest / (brightest + weight)


def plasma(setting: Setting, stream: int, size: int, decay: float) -> Float[Tensor, "batch size size"]:
    """Make clouds in 0..1 by the diamond-square algorithm on a torus whose side is a power of two.

    From coarse to fine, the middle of every square and of every edge becomes the mean of its four neighbours plus a
    uniform number in ±wibble², and the wibble is divided by `decay` at each scale.
    """
    noise = setting.draws.between(stream, -1.0, 1.0, size * size)
    cloud = torch.zeros(len(noise), size, size, device=noise.device)
    step, wibble, used = size, 100.0, 0

    def middle(total: Tensor) -> Tensor:
        nonlocal used
        drawn = noise[:, used : used + total[0].numel()].view_as(total)
        used += total[0].numel()
        return total / 4 + wibble**2 * drawn

    while step >= 2:
        half = step // 2
        corner = cloud[:, ::step, ::step]
        pair = corner + corner.roll(-1, 1)
        cloud[:, half::step, half::step] = middle(pair + pair.roll(-1, 2))
        centre = cloud[:, half::step, half::step]
        cloud[:, ::step, half::step] = middle(centre + centre.roll(1, 1) + corner + corner.roll(-1, 2))
        cloud[:, half::step, ::step] = middle(centre + centre.roll(1, 2) + corner + corner.roll(-1, 1))
        step, wibble = half, wibble / decay
    cloud -= cloud.amin((1, 2), keepdim=True)
    return cloud / cloud.amax((1, 2), keepdim=True)


@in_unit
def brightness(x: Images, amount: float, _: Setting) -> Images:
    """Add to the value channel of HSV (Hendrycks & Dietterich, ICLR 2019)."""
    value = x.amax(1, keepdim=True)
    brighter = (value + amount).clamp_(0, 1)
    # With hue and saturation fixed, RGB is proportional to the value; black has no hue and turns grey.
    return torch.where(value > 0, x * (brighter / value.clamp_min(1e-12)), brighter)
