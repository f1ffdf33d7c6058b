"""Loss of focus, motion, and what else spreads a pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from shiftcal.shifts.corruptions.setting import Images, Setting, Stored, in_unit, truncated

_GLASS, _MOTION = 10, 20  # streams of random numbers
_HOPS = 6  # doublings: chains of copies up to 64 long are followed, and one of 32 is as rare as 1e-12
_LEAST = 8  # images in a product of matrices


@in_unit
def gaussian_blur(x: Images, sigma: float, _: Setting) -> Images:
    """Convolve with a Gaussian cut at 4σ, edges replicated (Hendrycks & Dietterich, ICLR 2019)."""
    return smooth(x, sigma)


def smooth(x: Tensor, sigma: float, *, truncate: float = 4.0, edge: str = "nearest") -> Tensor:
    """Convolve with a Gaussian; beyond the edge images go on with the "nearest" pixel, or "reflect"-ed."""
    if int(truncate * sigma + 0.5) == 0:
        return x
    rows, columns = (_blur_matrix(size, sigma, truncate, edge).to(x) for size in x.shape[-2:])
    return rows @ x @ columns.T


@lru_cache(maxsize=64)
def _blur_matrix(size: int, sigma: float, truncate: float, edge: str) -> Float[Tensor, "size size"]:
    """Write the blur along one side as a matrix; what lies beyond the edge adds its weight to the pixel it repeats."""
    radius = int(truncate * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2)
    source = torch.arange(size)[:, None] + offsets
    if edge == "nearest":
        source = source.clamp(0, size - 1)
    else:  # the edge pixel is repeated: c b a | a b c
        source = source.remainder(2 * size)
        source = torch.minimum(source, 2 * size - 1 - source)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    return matrix.scatter_add_(1, source, (weights / weights.sum()).expand(size, -1))


@in_unit
def defocus_blur(x: Images, amount: Sequence[float], _: Setting) -> Images:
    """Convolve with a softened disk, edges mirrored (Hendrycks & Dietterich, ICLR 2019)."""
    radius, softness = amount
    kernel = _disk(radius, softness).to(x)
    reach = len(kernel) // 2
    padded = torch.nn.functional.pad(x, (reach,) * 4, mode="reflect")
    if len(kernel) > 5:
        return torch.nn.functional.conv2d(padded.flatten(0, 1)[:, None], kernel[None, None]).view_as(x)
    height, width = x.shape[-2:]
    total = torch.zeros_like(x)  # for few taps, sums of shifted images are faster
    for i, row in enumerate(kernel.tolist()):
        for j, weight in enumerate(row):
            total.add_(padded[:, :, i : i + height, j : j + width], alpha=weight)
    return total


@lru_cache(maxsize=64)
def _disk(radius: float, softness: float) -> Float[Tensor, "side side"]:
    """Draw a disk on a grid and blur it by a Gaussian of 3×3 points (5×5 for radii over 8) to soften its rim."""
    reach, half = (8, 1) if radius <= 8 else (int(radius), 2)
    grid = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (grid[:, None] ** 2 + grid**2 <= radius**2).double()
    tap = torch.exp(-(torch.arange(-half, half + 1, dtype=torch.float64) ** 2) / (2 * softness**2))
    kernel = torch.outer(tap, tap)[None, None] / tap.sum() ** 2
    padded = torch.nn.functional.pad(disk[None, None] / disk.sum(), (half,) * 4, mode="reflect")
    soft = torch.nn.functional.conv2d(padded, kernel)[0, 0]
    # What is below a millionth, as the corners around a small disk are, changes no grey level.
    margin = min(int((soft.sum(1) > 1e-6).nonzero()[0]), reach)
    return soft[margin : len(soft) - margin, margin : len(soft) - margin]


def glass_blur(x: Stored, amount: Sequence[float], setting: Setting) -> Stored:
    """Blur, let pixels take over the value of a near one, blur again (Hendrycks & Dietterich, ICLR 2019).

    The benchmark's generator means to swap pixels, from the lower right to the upper left. What its assignment does
    is to copy the neighbour's value, and that is the benchmark.
    """
    sigma, reach, times = amount[0], int(amount[1]), int(amount[2])
    blurred = int(4 * sigma + 0.5) > 0
    x = truncated(smooth(x.float(), sigma)) if blurred else x
    for iteration in range(times):
        source = _copied_from(setting, _GLASS + iteration, x.shape[2], x.shape[3], reach)
        x = x.flatten(2).gather(2, source[:, None].expand(-1, 3, -1)).view_as(x)
    return truncated(smooth(x.float(), sigma)) if blurred else x


def _copied_from(setting: Setting, stream: int, height: int, width: int, reach: int) -> Int[Tensor, "batch pixels"]:
    """Find where each pixel's value comes from when pixels are visited from the last to the first.

    A pixel that takes over an already visited one's value takes what that one has got from elsewhere: chains of copies
    are followed by doubling, all at once.
    """
    device = setting.draws.indices.device
    offset = setting.draws.integers(stream, -reach, reach, 2, height * width)
    place = torch.arange(height * width, device=device)
    row, column = place // width, place % width
    moved = (row > reach) & (row <= height - reach) & (column > reach) & (column <= width - reach)
    source = torch.where(moved, place + offset[:, 0] * width + offset[:, 1], place)
    if reach == 1:  # offsets are −1 and 0: pixels that were not visited yet
        return source
    pending = moved & moved[source] & (source > place)
    for _ in range(_HOPS):
        source, pending = torch.where(pending, source.gather(1, source), source), pending & pending.gather(1, source)
    return source


def motion_blur(x: Stored, amount: Sequence[float], setting: Setting) -> Stored:
    """Smear along a direction within 45° of the horizontal, as ImageMagick does (Hendrycks & Dietterich, ICLR 2019)."""
    angle = setting.draws.between(_MOTION, -45.0, 45.0, 1)[:, 0]
    return smear(x, amount[0], amount[1], angle)


def smear(
    x: UInt8[Tensor, "batch channels height width"], radius: float, sigma: float, degrees: Float[Tensor, " batch"]
) -> UInt8[Tensor, "batch channels height width"]:
    """Average pixels along a line from each pixel on, weighted by half a Gaussian; ImageMagick's motion blur.

    Step i of 2·radius + 1 is ⌈i·cos − ½⌉ to the right and ⌈i·sin − ½⌉ down; edges are replicated, results rounded.
    """
    taps = 2 * math.ceil(radius) + 1
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(taps)]
    weights = [w / sum(weights) for w in weights]
    while len(weights) > 1 and weights[-1] < 1e-6:  # these change no grey level
        weights.pop()
    height, width, reach = *x.shape[-2:], len(weights)
    angle = torch.deg2rad(degrees.double())
    step = torch.arange(len(weights), device=x.device)
    right, down = (torch.ceil(step * part[:, None] - 0.5).long() for part in (angle.cos(), angle.sin()))
    padded = torch.nn.functional.pad(x.float(), (reach,) * 4, mode="replicate").flatten(2)
    place = (torch.arange(height, device=x.device)[:, None] + reach) * (width + 2 * reach)
    place = (place + torch.arange(width, device=x.device) + reach).flatten()
    jump = down * (width + 2 * reach) + right
    total = torch.full(x.shape, 0.5, device=x.device).flatten(2)
    for i, weight in enumerate(weights):
        source = (place + jump[:, i, None])[:, None].expand(-1, x.shape[1], -1)
        total.add_(padded.gather(2, source), alpha=weight)
    return total.to(torch.uint8).view_as(x)


@in_unit
def zoom_blur(x: Images, amount: Sequence[float], _: Setting) -> Images:
    """Average the image with enlargements of itself (Hendrycks & Dietterich, ICLR 2019)."""
    factors = np.arange(*amount).tolist()
    if x.shape[-2:].numel() <= 1024:  # one product with a matrix of all pixels is faster for small images
        # A product of very few rows is rounded otherwise: an image would depend on its batch.
        rows = torch.nn.functional.pad(x.flatten(2), (0, 0, 0, 0, 0, max(_LEAST - len(x), 0)))
        return (rows @ _zoom_operator(*x.shape[-2:], tuple(factors)).to(x).T)[: len(x)].view_as(x)
    total = x.clone()
    for factor in factors:
        total += zoom(x, factor)
    return total / (len(factors) + 1)


def zoom(x: Tensor, factor: float) -> Tensor:
    """Enlarge the middle of images to their size, interpolating linearly, as SciPy's `zoom` does."""
    if factor == 1:
        return x
    if max(x.shape[-2:]) > 256:
        return _zoom_large(x, factor)
    rows, columns = (_zoom_matrix(size, factor).to(x) for size in x.shape[-2:])
    return rows @ x @ columns.T


def _zoom_large(x: Tensor, factor: float) -> Tensor:
    """Enlarge by interpolation instead of by matrices, which grow with the square of the side."""
    size = x.shape[-2:]
    cut = [math.ceil(side / factor) for side in size]
    top, left = ((side - part) // 2 for side, part in zip(size, cut, strict=True))
    middle = x[..., top : top + cut[0], left : left + cut[1]]
    enlarged = [round(part * factor) for part in cut]
    big = torch.nn.functional.interpolate(middle, size=enlarged, mode="bilinear", align_corners=True)
    top, left = ((part - side) // 2 for side, part in zip(size, enlarged, strict=True))
    return big[..., top : top + size[0], left : left + size[1]]


@lru_cache(maxsize=64)
def _zoom_matrix(size: int, factor: float) -> Float[Tensor, "size size"]:
    cut = math.ceil(size / factor)
    enlarged = round(cut * factor)
    place = torch.arange(size, dtype=torch.float64) + (enlarged - size) // 2
    place = place * (cut - 1) / max(enlarged - 1, 1)
    left = place.floor().clamp(max=max(cut - 2, 0))
    matrix = torch.zeros(size, size, dtype=torch.float64)
    first = (left.long() + (size - cut) // 2)[:, None]
    matrix.scatter_add_(1, first, (1 - (place - left))[:, None])
    return matrix.scatter_add_(1, (first + 1).clamp(max=size - 1), (place - left)[:, None])


@lru_cache(maxsize=64)
def _zoom_operator(height: int, width: int, factors: tuple[float, ...]) -> Float[Tensor, "pixels pixels"]:
    total = torch.eye(height * width, dtype=torch.float64)
    for factor in factors:
        total += torch.kron(_zoom_matrix(height, factor), _zoom_matrix(width, factor))
    return (total / (len(factors) + 1)).float()
