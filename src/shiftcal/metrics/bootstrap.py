"""Confidence intervals by the bootstrap, for any metric that is one number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count, wrong
from shiftcal._progress import Progress
from shiftcal.metrics._inputs import check_inputs


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
    well. Near zero the basic one contains it less often than `level` says, too: for the ECE take `ece_interval`.

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
