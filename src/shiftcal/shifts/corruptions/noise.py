"""Sensor noise."""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

from shiftcal.shifts.corruptions.setting import Images, Setting, Stored, in_unit

_GAUSSIAN, _SHOT, _IMPULSE, _SPECKLE = range(4)  # streams of random numbers


@in_unit
def gaussian_noise(x: Images, sigma: float, setting: Setting) -> Images:
    """Add white noise, x + σ·ε with ε normal, as in low light (Hendrycks & Dietterich, ICLR 2019)."""
    return setting.draws.normal(_GAUSSIAN, *x.shape[1:]).mul_(sigma).add_(x)


@in_unit
def speckle_noise(x: Images, sigma: float, setting: Setting) -> Images:
    """Add noise in proportion to the image, x + x·σ·ε (Hendrycks & Dietterich, ICLR 2019)."""
    return setting.draws.normal(_SPECKLE, *x.shape[1:]).mul_(sigma).add_(1).mul_(x)


def impulse_noise(x: Stored, amount: float, setting: Setting) -> Stored:
    """Set a share of all values to 1 or 0, salt and pepper, channel by channel (Hendrycks & Dietterich, ICLR 2019)."""
    drawn = setting.draws.bits(_IMPULSE, *x.shape[1:])  # from −2³¹ to 2³¹ − 1
    pepper, salt = (round(share * 2**32 - 2**31) for share in (amount, amount / 2))
    return x.masked_fill(drawn < pepper, 0).masked_fill_(drawn < salt, 255)


def shot_noise(x: Stored, rate: float, setting: Setting) -> Stored:
    """Count photons, Poisson(rate·x)/rate (Hendrycks & Dietterich, ICLR 2019).

    There are 256 intensities, and each has its table of results to draw from (Walker's alias method): ten random bits
    are a place in the table, and fourteen others decide between the two results that share it.
    """
    drawn = setting.draws.bits(_SHOT, *x.shape[1:])
    place = (drawn >> 22).bitwise_and_(_PLACES - 1).add_(x.int().mul_(_PLACES))
    entry = _shot_table(rate).to(x.device)[place.long()]
    first = drawn.bitwise_and_(2**14 - 1) < (entry >> 16)
    return torch.where(first, entry >> 8, entry).to(torch.uint8)


_PLACES = 1024  # more than the counts of any photon number up to a rate of 700


@cache
def _shot_table(rate: float) -> Int32[Tensor, " entries"]:
    """Tabulate the results for all 256 intensities, 1024 places each: a threshold of 14 bits and two grey levels."""
    count = torch.arange(_PLACES, dtype=torch.float64)
    mean = rate * torch.arange(256, dtype=torch.float64)[:, None] / 255
    p = torch.exp(torch.special.xlogy(count, mean) - mean - torch.lgamma(count + 1))
    threshold, alias = _alias_tables(p / p.sum(1, keepdim=True))
    grey = (count / rate).clamp(max=1).mul(255).add(1e-6).long()
    return (((threshold * 2**14).round().long() << 16) + (grey << 8) + grey[alias]).int().flatten()


def _alias_tables(p: Float[Tensor, "rows places"]) -> tuple[Float[Tensor, "rows places"], Int[Tensor, "rows places"]]:
    """Find for each place what it keeps of its own and who fills the rest, for all rows at once.

    Places are taken from the poorest on; the richest fills them up until it is itself poor, and then the next richest
    fills it up (Vose, 1991).
    """
    rows, places = p.shape
    share, place = (p * places).sort(1)
    threshold, alias, row = torch.ones_like(share), torch.zeros_like(place), torch.arange(rows)
    poor, rich = torch.zeros(rows, dtype=torch.int64), torch.full((rows,), places - 1)
    left = share[row, rich]
    for _ in range(places - 1):
        spent = left < 1
        filled, filler = torch.where(spent, rich, poor), torch.where(spent, rich - 1, rich)
        kept = torch.where(spent, left, share[row, poor])
        threshold[row, filled], alias[row, filled] = kept, place[row, filler]
        left = torch.where(spent, share[row, filler], left) - (1 - kept)
        poor, rich = poor + ~spent, filler
    return torch.empty_like(threshold).scatter_(1, place, threshold), torch.empty_like(alias).scatter_(1, place, alias)
