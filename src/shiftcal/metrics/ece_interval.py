"""A confidence interval of the ECE that holds for calibrated models too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count, wrong
from shiftcal.metrics._inputs import check_inputs
from shiftcal.metrics.binning import bin_index, sum_at, top_label
from shiftcal.metrics.bootstrap import Interval

_AT_ONCE = 50  # sets of samples
_HALVINGS = 40
_FARTHEST = 1e6


class Gaps(NamedTuple):
    """How far hits and confidence lie apart in each bin, and how far that moves by chance.

    Attributes:
        observed: Σ_i∈bin (hit_i − confidence_i) / n: the absolute values sum to the ECE.
        noise: What sets of n samples drawn with replacement have more.
    """

    observed: Float[Tensor, " bins"]
    noise: Float[Tensor, "resamples bins"]


@takes_arrays
def ece_interval(
    probabilities: Float[Tensor, "n classes"],
    targets: Int[Tensor, " n"],
    *,
    bins: int = 15,
    level: float = 0.95,
    resamples: int = 500,
    seed: int = 0,
) -> Interval:
    """Estimate the ECE's confidence interval: the true errors under which the one that is seen is no surprise.

    An ECE is a sum of absolute values, so that chance raises it, and most where there is little error: the
    bootstrap's interval leaves out the truth, 0, for half of the calibrated models. Here a test is inverted. Suppose
    that the true gaps of the bins are δ, add the noise of resampled sets, and see whether the ECE that was observed
    lies among those that come out. The δ that are tried are the observed gaps, each moved towards 0 by a multiple of
    its standard error until none is left, and all of them enlarged by one factor. The interval reaches down to 0
    where chance alone explains the ECE, and it contains the ECE. An ECE below the median of chance is taken for the
    median: good luck shows no more than that. Measured: benchmarks/intervals.py.

    Args:
        probabilities: Rows that sum to 1; their largest entries count.
        targets: Class indices.
        bins: Number of bins, as for `ece`.
        level: The share of such intervals that are to contain the truth.
        resamples: How many sets to draw.
        seed: Seed of the draws.

    Example:
        >>> p = torch.tensor([[0.75, 0.25]] * 1000)
        >>> value, low, high = ece_interval(p, torch.arange(1000) % 4 // 3)  # right in 750 of 1000
        >>> value, low, round(high, 2)
        (0.0, 0.0, 0.03)
        >>> value, low, high = ece_interval(p, torch.arange(1000) % 2)
        >>> round(value, 2), round(low, 2), round(high, 2)
        (0.25, 0.22, 0.28)
    """
    return interval_of_mean_ece([gaps_of(probabilities, targets, bins=bins, resamples=resamples, seed=seed)], level)


def gaps_of(
    probabilities: Float[Tensor, "n classes"],
    targets: Int[Tensor, " n"],
    *,
    bins: int = 15,
    resamples: int = 500,
    seed: int = 0,
) -> Gaps:
    """Compute the gaps of the bins, and their noise in resampled sets.

    Sets of one size and seed are resampled alike.

    Example:
        >>> p = torch.tensor([[0.75, 0.25]] * 100)
        >>> round(float(gaps_of(p, torch.arange(100) % 2).observed.abs().sum()), 2)
        0.25
    """
    check_inputs(probabilities, targets)
    check_count("bins", bins)
    check_count("resamples", resamples, least=2)
    confidence, hits = top_label(probabilities.detach(), targets)
    n, index, gap = len(targets), bin_index(confidence, bins), hits.double() - confidence.double()
    by_bin = torch.zeros(n, bins, dtype=torch.float64, device=gap.device).scatter_(1, index[:, None], gap[:, None])
    observed = sum_at(index, gap, bins) / n
    drawn = (_draws(n, start, min(_AT_ONCE, resamples - start), seed) for start in range(0, resamples, _AT_ONCE))
    resampled = torch.cat([counts.to(gap.device).double() @ by_bin for counts in drawn]) / n
    return Gaps(observed.cpu(), (resampled - observed).cpu())


def interval_of_mean_ece(sets: Sequence[Gaps], level: float = 0.95) -> Interval:
    """Estimate the interval of the mean ECE of several sets, see `ece_interval`.

    Sets that were resampled alike, of the same images, keep what their noise has in common.

    Example:
        >>> p, y = torch.tensor([[0.75, 0.25]] * 100), torch.arange(100) % 2
        >>> interval_of_mean_ece([gaps_of(p, y)] * 2) == interval_of_mean_ece([gaps_of(p, y)])
        True
    """
    if not 0 < level < 1:
        raise wrong("level", "in (0, 1)", level)
    observed = torch.stack([gaps.observed for gaps in sets]).double().cpu()
    noise = torch.stack([gaps.noise for gaps in sets]).double().cpu()
    value, error = float(observed.abs().sum()) / len(sets), noise.std(1)
    direction = observed if value > 0 else error

    def supposed(x: float) -> Tensor:
        """Return true gaps: the observed ones at 0, none left far below it, larger ones above it."""
        return observed + x * direction if x > 0 else observed.sign() * (observed.abs() + x * error).clamp(min=0)

    def seen(x: float, tail: float) -> float:
        """Return a quantile of the ECE that would be seen if `supposed(x)` were true."""
        eces = (supposed(x)[:, None] + noise).abs_().sum(2).mean(0)
        return float(eces.quantile(tail))

    def true(x: float) -> float:
        return float(supposed(x).abs().sum()) / len(sets)

    moved = error > 0  # a bin without noise keeps its gap
    none = -float((observed[moved].abs() / error[moved]).max()) if bool(moved.any()) else 0.0
    low = _crossing(lambda x: seen(x, (1 + level) / 2), value, none)
    high = _crossing(lambda x: seen(x, (1 - level) / 2), max(value, seen(none, 0.5)), none)
    return Interval(value, min(true(low), value), min(max(true(high), value), 1.0))


def _crossing(rising: Callable[[float], float], value: float, start: float) -> float:
    """Find where a rising function reaches a value: at the start, or at a place above it."""
    if rising(start) >= value:
        return start
    end = 1.0
    while rising(end) < value and end < _FARTHEST:
        end *= 2
    for _ in range(_HALVINGS):
        middle = (start + end) / 2
        start, end = (middle, end) if rising(middle) < value else (start, middle)
    return end


@lru_cache(maxsize=16)
def _draws(n: int, start: int, sets: int, seed: int) -> UInt8[Tensor, "sets n"]:
    """Draw how often each of n samples is in each of some sets."""
    generator = torch.Generator().manual_seed(seed + start)
    index = torch.randint(n, (sets, n), generator=generator)
    counts = torch.zeros(sets, n, dtype=torch.int32).scatter_add_(1, index, torch.ones_like(index, dtype=torch.int32))
    return counts.to(torch.uint8)  # more than 255 times the same sample will not be seen
