"""Gradient noise of a constraint: what two batches agree on, and whether it is more than chance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from shiftcal._errors import check_count
from shiftcal.gradients import constrained_first, gradients_of_losses

Losses = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Estimate:
    """A mean over pairs of batches, and its standard error (0 for one pair)."""

    mean: float
    error: float


@dataclass(frozen=True)
class Noise:
    """The constraint's gradient at given weights, over pairs of batches.

    Attributes:
        cosine: The cosine between its gradients on two independent batches: 1 without noise, 0 where noise is all.
        norm: Its norm on one batch.
        main_cosine: The cosine between the main gradient and the constraint's.
        conflict_rate: The share of pairs in which these two conflict, their product being negative.
    """

    cosine: Estimate
    norm: Estimate
    main_cosine: Estimate
    conflict_rate: Estimate


def gradient_noise(
    draw: Callable[[], Losses],
    parameters: Iterable[Tensor],
    classifier: Iterable[Tensor],
    *,
    pairs: int = 16,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Noise]:
    """Measure the noise of a constraint's gradient, for all parameters and for the classifier's alone.

    Args:
        draw: Computes three losses on newly drawn batches: the main one, and the constraint on two independent ones.
        parameters: All parameters of the model; frozen ones are left out.
        classifier: Those of the classifier.
        pairs: How many times to draw.
        advance: Called after each.

    Returns:
        By scope, "all" and "classifier".
    """
    check_count("pairs", pairs)
    ordered, count = constrained_first(parameters, classifier)
    sizes = {"all": sum(p.numel() for p in ordered), "classifier": sum(p.numel() for p in ordered[:count])}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in sizes}
    for _ in range(pairs):
        main, first, second = _gradients(draw(), ordered)
        for name, size in sizes.items():
            found[name].append(_compared(main[:size], first[:size], second[:size]))
        advance()
    return {name: Noise(*map(_estimate, zip(*rows, strict=True))) for name, rows in found.items()}


def _gradients(losses: Losses, parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    main_loss, first_loss, second_loss = losses
    both = gradients_of_losses(main_loss, first_loss, parameters, len(parameters))
    second = gradients_of_losses(second_loss, None, parameters).flattened(parameters)
    return both.flat[: both.size], both.flat[both.size :], second.flat


def _compared(main: Float[Tensor, " n"], first: Float[Tensor, " n"], second: Float[Tensor, " n"]) -> tuple[float, ...]:
    """Return the cosine of both batches, the norm, the cosine with the main gradient, and whether that conflicts."""
    main, first, second = main.double(), first.double(), second.double()
    with_main = _cosine(main, first)
    return _cosine(first, second), float(first.norm()), with_main, float(with_main < 0)


def _cosine(one: Tensor, other: Tensor) -> float:
    """Return the cosine; 0 where a gradient vanishes."""
    norms = one.norm() * other.norm()
    return float(torch.where(norms > 0, one.dot(other) / norms, 0.0))


def _estimate(values: Sequence[float]) -> Estimate:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Estimate(statistics.fmean(values), error)
