"""Confidence intervals by the bootstrap, for any metric that is one number."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count, wrong
from shiftcal._progress import Progress
from shiftcal.metrics._inputs import check_inputs
from shiftcal.metrics.binning import bin_index, top_label

_AT_ONCE = 50  # sets of samples


class Interval(NamedTuple):
    """A metric's value on the whole set and the ends of its confidence interval."""

    value: float
    low: float
    high: float


@takes_arrays
def bootstrap_interval(
    metric: Callable[[Tensor, Tensor], float],
    probabilities: Float[Tensor, "n classes"],
    targets: Int[Tensor, " n"],
    *,
    level: float = 0.95,
    resamples: int = 1000,
    method: Literal["basic", "percentile"] = "basic",
    seed: int = 0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    progress: bool = True,
) -> Interval:
    """Estimate a metric's confidence interval [2v − q_high, 2v − q_low] from resamples (Efron & Tibshirani, 1993).

    v is the value on the whole set, and q_low, q_high are quantiles over sets of n samples drawn with replacement.
    A binned error of few samples is too high, and resampling raises it once more. The basic interval takes that off;
    the "percentile" interval [q_low, q_high] does not, and hardly ever contains the truth where a model is calibrated
    well (tests/metrics/test_bootstrap.py). Near zero the basic one contains it less often than `level` says, too.

    Args:
        metric: A function of probabilities and targets, such as `shiftcal.metrics.ece`.
        probabilities: Rows that sum to 1.
        targets: Class indices.
        level: The share of such intervals that are to contain the truth.
        resamples: How many sets to draw.
        method: "basic" or "percentile".
        seed: Seed of the draws.
        bounds: The smallest and largest value that the metric can take, such as (0, 1); ends beyond are moved there.
        progress: Show a progress bar on a terminal.

    Example:
        >>> from shiftcal.metrics import accuracy
        >>> p, y = torch.tensor([[0.9, 0.1]] * 100), torch.arange(100) % 4 // 3  # right in 75 of 100
        >>> value, low, high = bootstrap_interval(accuracy, p, y)
        >>> value, round(low, 2), round(high, 2)
        (0.75, 0.67, 0.84)
    """
    check_inputs(probabilities, targets)
    if not 0 < level < 1:
        raise wrong("level", "in (0, 1)", level)
    check_count("resamples", resamples, least=2)
    if method not in ("basic", "percentile"):
        raise wrong("method", "'basic' or 'percentile'", repr(method))
    n, device = len(targets), probabilities.device
    generator, value = torch.Generator(device).manual_seed(seed), float(metric(probabilities, targets))
    values = []
    with Progress("bootstrap", resamples, enabled=progress) as bar:
        for _ in range(resamples):
            index = torch.randint(n, (n,), generator=generator, device=device)
            values.append(float(metric(probabilities[index], targets[index])))
            bar.advance()
    return interval_of(value, torch.tensor(values, dtype=torch.float64), level=level, method=method, bounds=bounds)


def interval_of(
    value: float,
    replicates: Float[Tensor, " resamples"],
    *,
    level: float = 0.95,
    method: Literal["basic", "percentile"] = "basic",
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> Interval:
    """Make an interval of a metric's values on resamples, see `bootstrap_interval`."""
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = replicates.double().cpu().quantile(tails).tolist()
    if method == "basic":
        low, high = 2 * value - high, 2 * value - low
    least, most = bounds
    return Interval(value, min(max(low, least), most), min(max(high, least), most))


def ece_replicates(
    probabilities: Float[Tensor, "n classes"],
    targets: Int[Tensor, " n"],
    *,
    bins: int = 15,
    resamples: int = 500,
    seed: int = 0,
) -> Float[Tensor, " resamples"]:
    """Compute the ECE of sets drawn with replacement, as `bootstrap_interval` does, many at once.

    Sets of one size and seed are drawn alike: replicates of several test sets of the same images can be averaged.

    Example:
        >>> p, y = torch.tensor([[0.75, 0.25]] * 100), torch.arange(100) % 2
        >>> 0.2 < float(ece_replicates(p, y).mean()) < 0.3
        True
    """
    check_inputs(probabilities, targets)
    check_count("bins", bins)
    check_count("resamples", resamples, least=2)
    confidence, hits = top_label(probabilities.detach(), targets)
    n = len(targets)
    excess = torch.zeros(n, bins, dtype=torch.float64, device=confidence.device)
    excess.scatter_(1, bin_index(confidence, bins)[:, None], (hits.double() - confidence.double())[:, None])
    drawn = (_draws(n, start, min(_AT_ONCE, resamples - start), seed) for start in range(0, resamples, _AT_ONCE))
    return torch.cat([(counts.to(excess.device).double() @ excess).abs().sum(1) for counts in drawn]) / n


@lru_cache(maxsize=16)
def _draws(n: int, start: int, sets: int, seed: int) -> UInt8[Tensor, "sets n"]:
    """Draw how often each of n samples is in each of some sets."""
    generator = torch.Generator().manual_seed(seed + start)
    index = torch.randint(n, (sets, n), generator=generator)
    counts = torch.zeros(sets, n, dtype=torch.int32).scatter_add_(1, index, torch.ones_like(index, dtype=torch.int32))
    return counts.to(torch.uint8)  # more than 255 times the same sample will not be seen
