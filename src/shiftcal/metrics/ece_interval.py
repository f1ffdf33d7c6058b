"""A confidence interval of the ECE that holds for calibrated models too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
_KEPT = 100_000  # samples, of which draws are kept
_HALVINGS = 40
_FARTHEST = 1e6


class Gaps(NamedTuple):
    """How far hits and confidence lie apart in each bin, and how far that moves by chance.

    Attributes:
        observed: Σ_i∈bin (hit_i − confidence_i) / n: the absolute values sum to the ECE.
        noise: How far the gaps of sets drawn with replacement lie from these; in bins where hits drawn at the stated
            confidence vary more, how far those lie from it.
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
    lies among those that come out. The δ that are tried are the observed gaps, each moved by one multiple of its
    standard error: towards 0 until none is left, and away from it. The interval reaches down to 0
    where chance alone explains the ECE, and it contains the ECE. An ECE below the median of chance is taken for the
    median: good luck shows no more than that. Bins have the noise at least of a model that is right as often as it
    says and makes one mistake: resampling leaves bins without mistakes as they are. Measured: benchmarks/intervals.py.

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
        (0.0, 0.0, 0.04)
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
    confidence, hits = (found.cpu() for found in top_label(probabilities.detach(), targets))
    confidence, n = confidence.double(), len(targets)
    index, gap = bin_index(confidence, bins), hits.double() - confidence
    by_bin = torch.zeros(n, bins, dtype=torch.float64).scatter_(1, index[:, None], 1.0)
    observed, excess = sum_at(index, gap, bins) / n, by_bin * gap[:, None]
    noise = torch.cat([counts.double() @ excess for counts in _draws_of(n, resamples, seed)]) / n - observed
    # Resampling a bin without mistakes makes none. Noise is at least that of a model that is right as often as it says,
    # but makes one mistake: none in n is not yet a rate of 0.
    mistakes = sum_at(index, 1 - confidence, bins)
    missing = ((1 - mistakes).clamp(min=0) / by_bin.sum(0).clamp(min=1))[index]
    rate = torch.where(confidence > 0.5, (confidence - missing).clamp(min=0.5), confidence)
    few = sum_at(index, rate * (1 - rate), bins).sqrt() / n > noise.std(0)
    if bool(few.any()):
        noise[:, few] = _noise_at(rate, by_bin[:, few], resamples, seed) / n
    return Gaps(observed, noise)


def _noise_at(
    rate: Float[Tensor, " n"], by_bin: Float[Tensor, "n bins"], resamples: int, seed: int
) -> Float[Tensor, "resamples bins"]:
    """Draw hits at these rates, and sum what they have more or less; sets of one size are drawn alike."""
    generator, inside = torch.Generator().manual_seed(seed), by_bin.sum(1) > 0
    expected, by_bin = rate[inside], by_bin[inside]
    starts = range(0, resamples, _AT_ONCE)
    drawn = (torch.rand(min(_AT_ONCE, resamples - start), len(rate), generator=generator) for start in starts)
    return torch.cat([((uniform[:, inside] < expected).double() - expected) @ by_bin for uniform in drawn])


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
    sign = torch.where(observed < 0, -1.0, 1.0)

    def supposed(x: float) -> Tensor:
        """Return true gaps: the observed ones at 0, none left far below it, larger ones above it."""
        return sign * (observed.abs() + x * error).clamp(min=0)

    def seen(x: float, tail: float, way: int = 1) -> float:
        """Return a quantile of the ECE that would be seen if `supposed(x)` were true, or all of it the other way."""
        eces = (way * supposed(x)[:, None] + noise).abs_().sum(2).mean(0)
        return float(eces.quantile(tail))

    def end(tail: float, least: float, way: int = 1) -> float:
        """Return the true ECE at which that quantile reaches a value."""
        x = _crossing(lambda x: seen(x, tail, way), least, none)
        return float(supposed(x).abs().sum()) / len(sets)

    moved = error > 0  # a bin without noise keeps its gap
    none = -float((observed[moved].abs() / error[moved]).max()) if bool(moved.any()) else 0.0
    chance = float(supposed(none).abs().sum()) / len(sets)
    low = end((1 + level) / 2, value) if seen(none, (1 + level) / 2) < value else chance
    high = max(end((1 - level) / 2, max(value, seen(none, 0.5)), way) for way in (1, -1))
    return Interval(value, min(low, value), min(max(high, value), 1.0))


def _crossing(rising: Callable[[float], float], value: float, start: float) -> float:
    """Find where a rising function reaches a value, above the start."""
    end = 1.0
    while rising(end) < value and end < _FARTHEST:
        end *= 2
    for _ in range(_HALVINGS):
        middle = (start + end) / 2
        start, end = (middle, end) if rising(middle) < value else (start, middle)
    return end


def _draws_of(n: int, resamples: int, seed: int) -> Iterator[UInt8[Tensor, "sets n"]]:
    """Yield how often each of n samples is in each set; those of few samples are kept for the next test set."""
    draws = _kept_draws if n <= _KEPT else _draws
    return (draws(n, start, min(_AT_ONCE, resamples - start), seed) for start in range(0, resamples, _AT_ONCE))


def _draws(n: int, start: int, sets: int, seed: int) -> UInt8[Tensor, "sets n"]:
    generator = torch.Generator().manual_seed(seed + start)
    index = torch.randint(n, (sets, n), generator=generator)
    counts = torch.zeros(sets, n, dtype=torch.int32).scatter_add_(1, index, torch.ones_like(index, dtype=torch.int32))
    return counts.to(torch.uint8)  # more than 255 times the same sample will not be seen


_kept_draws = lru_cache(maxsize=16)(_draws)
