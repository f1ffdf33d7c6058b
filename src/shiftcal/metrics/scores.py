"""Accuracy and the two proper scores, over all samples."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count
from shiftcal.metrics._inputs import check_inputs, fraction
from shiftcal.metrics.binning import class_bin_sums, top_label


@takes_arrays
def accuracy(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> float:
    """Compute the share of samples whose most probable class is the true one, (1/N) Σ_i [ŷ_i = y_i].

    Example:
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        0.5
    """
    check_inputs(probabilities, targets)
    return fraction(top_label(probabilities, targets)[1].double().mean())


@takes_arrays
def nll(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> float:
    """Compute the negative log-likelihood, the mean of −log p_y over **all** samples (Good, 1952).

    A probability of exactly 0 counts as the smallest normal float64, so that the mean stays finite. Half precision
    makes such zeros of what is merely small: take the softmax in float32 at least.

    Example:
        >>> round(nll(torch.tensor([[0.5, 0.5]]), torch.tensor([1])), 4)
        0.6931
    """
    check_inputs(probabilities, targets)
    return fraction(sample_nll(probabilities, targets).mean())


@takes_arrays
def brier(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> float:
    """Compute the Brier score, the mean of Σ_k (p_k − onehot_k)² (Brier, 1950).

    Example:
        >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([1]))
        0.5
    """
    check_inputs(probabilities, targets)
    return fraction(sample_brier(probabilities, targets).mean())


@takes_arrays
def brier_calibration(
    probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], *, bins: int = 15
) -> float:
    """Compute the calibration part of the Brier score (DeGroot & Fienberg, The Statistician 1983), with bins.

    It is Σ_k Σ_m |B_km|/N · (mean p_k − share of class k in B_km)² over bins B_km of each class's probability.

    Example:
        >>> p = torch.tensor([[0.75, 0.25]] * 4)
        >>> brier_calibration(p, torch.tensor([0, 0, 1, 1]))  # 75 % sure, 50 % right, for both classes
        0.125
    """
    check_inputs(probabilities, targets)
    check_count("bins", bins)
    sums = class_bin_sums(probabilities, targets, bins)
    return fraction(((sums.confidence - sums.hits).square() / sums.count.clamp(min=1)).sum() / len(targets))


@takes_arrays
def brier_refinement(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], *, bins: int = 15) -> float:
    """Compute the rest of the Brier score, `brier` − `brier_calibration` (DeGroot & Fienberg, The Statistician 1983).

    No map of each bin to one value could mend it.

    Example:
        >>> p = torch.tensor([[0.75, 0.25]] * 4)
        >>> brier_refinement(p, torch.tensor([0, 0, 0, 1]))  # right as often as it says: all of it
        0.375
    """
    return brier(probabilities, targets) - brier_calibration(probabilities, targets, bins=bins)


def sample_nll(probabilities: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
    """Return −log p_y per sample, in float64."""
    p_y = probabilities.gather(1, targets.long()[:, None]).squeeze(1).double()
    return -p_y.clamp_min(torch.finfo(torch.float64).tiny).log()


def sample_brier(probabilities: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
    """Return the squared distance to the one-hot target per sample, in float64."""
    y = targets.long()[:, None]
    distance = probabilities.double().scatter_add(1, y, -torch.ones_like(y, dtype=torch.float64))
    return distance.square().sum(1)
