"""Splashes of water and mud on the lens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from shiftcal.shifts.corruptions.blur import smooth
from shiftcal.shifts.corruptions.setting import Images, Setting, in_unit, truncated

_SPATTER = 50  # stream of random numbers
_WATER, _MUD = (175, 238, 238), (63, 42, 20)
_FARTHEST = 20
Planes = Float[Tensor, "batch height width"]


@in_unit
def spatter(x: Images, amount: Sequence[float], setting: Setting) -> Images:
    """Splash water (mild) or mud (strong) on the image (Hendrycks & Dietterich, ICLR 2019)."""
    mean, spread, sigma, threshold, intensity, muddy = amount
    liquid = setting.draws.normal(_SPATTER, *x.shape[-2:]).mul_(spread).add_(mean)
    liquid = smooth(liquid, sigma)
    liquid = liquid.where(liquid >= threshold, 0.0)
    if muddy:
        mud = smooth((liquid > threshold).float(), intensity)
        mud = mud.where(mud >= 0.8, 0.0)[:, None]
        return x * (1 - mud) + mud * _colour(_MUD, x)
    levels = truncated(liquid * 255).float()
    film = levels * _relief(levels)
    film = film / film.amax((1, 2), keepdim=True).clamp_min(1e-12)
    return x + intensity * film[:, None] * _colour(_WATER, x)


def _colour(rgb: tuple[int, int, int], like: Tensor) -> Tensor:
    return like.new_tensor(rgb)[:, None, None] / 255


def _relief(levels: Planes) -> Planes:
    """Light the drops from one side: emboss the equalised distance to their edges, as OpenCV computes it."""
    distance = _distance(_edges(levels)).clamp(max=_FARTHEST)
    relief = _equalise(_box(distance).floor_())
    emboss = relief.new_tensor([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    lit = torch.nn.functional.conv2d(_mirrored(relief), emboss[None, None])[:, 0].clamp_(0, 255)
    return _box(lit).round_()


def _mirrored(planes: Planes) -> Float[Tensor, "batch 1 height2 width2"]:
    return torch.nn.functional.pad(planes[:, None], (1, 1, 1, 1), mode="reflect")


def _box(planes: Planes) -> Planes:
    return torch.nn.functional.avg_pool2d(_mirrored(planes), 3, stride=1)[:, 0]


def _edges(levels: Planes, low: float = 50.0, high: float = 150.0) -> Bool[Tensor, "batch height width"]:
    """Find edges as OpenCV's `Canny` does: Sobel, ridges of |dx| + |dy|, and weak ones where they touch strong ones."""
    sobel = levels.new_tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    padded = torch.nn.functional.pad(levels[:, None], (1, 1, 1, 1), mode="replicate")
    dx, dy = torch.nn.functional.conv2d(padded, torch.stack([sobel, sobel.T])[:, None]).unbind(1)
    size = dx.abs() + dy.abs()

    def at(down: int, right: int) -> Tensor:
        around = torch.nn.functional.pad(size, (1, 1, 1, 1))
        return around[:, 1 + down : around.shape[1] - 1 + down, 1 + right : around.shape[2] - 1 + right]

    tangent = 0.41421356 * dx.abs()  # of 22.5°
    flat, steep = dy.abs() < tangent, dy.abs() > tangent + 2 * dx.abs()
    same = dx * dy >= 0
    diagonal = torch.where(same, (size > at(-1, -1)) & (size > at(1, 1)), (size > at(-1, 1)) & (size > at(1, -1)))
    ridge = torch.where(flat, (size > at(0, -1)) & (size >= at(0, 1)), diagonal)
    ridge = torch.where(steep & ~flat, (size > at(-1, 0)) & (size >= at(1, 0)), ridge)
    weak = ridge & (size > low)
    strong = ridge & (size > high)
    while True:
        grown = weak & (torch.nn.functional.max_pool2d(strong[:, None].float(), 3, stride=1, padding=1)[:, 0] > 0)
        if torch.equal(grown, strong):
            return strong
        strong = grown


def _distance(edges: Bool[Tensor, "batch height width"]) -> Planes:
    """Measure the distance to the nearest edge by steps of one, diagonal and knight's moves, up to where it is cut."""
    height, width = edges.shape[1:]
    distance = torch.where(edges, 0.0, 2.0 * _FARTHEST)
    cost = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}
    square = [(i, j) for i in range(-2, 3) for j in range(-2, 3)]
    moves = [(i, j, cost[kind]) for i, j in square if (kind := (min(abs(i), abs(j)), max(abs(i), abs(j)))) in cost]
    for _ in range(_FARTHEST):
        around = torch.nn.functional.pad(distance, (2, 2, 2, 2), value=2.0 * _FARTHEST)
        nearer = distance
        for i, j, length in moves:
            nearer = torch.minimum(nearer, around[:, 2 + i : 2 + i + height, 2 + j : 2 + j + width] + length)
        if torch.equal(nearer, distance):
            break
        distance = nearer
    return distance


def _equalise(levels: Planes) -> Planes:
    """Spread tones by their cumulative frequency, the darkest to 0, as OpenCV's `equalizeHist` does."""
    flat = levels.flatten(1).long()
    count = torch.zeros(len(flat), 256, device=levels.device).scatter_add_(
        1, flat, torch.ones_like(flat, dtype=torch.float32)
    )
    darkest = flat.amin(1, keepdim=True)
    others = flat.shape[1] - count.gather(1, darkest)
    table = (count.cumsum(1) - count.gather(1, darkest)).clamp_(min=0) * (255 / others.clamp(min=1))
    table = torch.where(others > 0, table.round(), torch.arange(256.0, device=levels.device))
    return table.gather(1, flat).view_as(levels)
