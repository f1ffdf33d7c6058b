"""Selective prediction: how much better a model is where it is sure of itself."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import wrong
from shiftcal.metrics._inputs import check_inputs, fraction
from shiftcal.metrics.binning import top_label


@takes_arrays
def aurc(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> float:
    """Compute the area under the risk–coverage curve, (1/N) Σ_i risk(i/N) (Geifman & El-Yaniv, NeurIPS 2017).

    risk(c) is the error rate of the share c of samples with the highest confidence. Samples of equal confidence count
    as if they came in random order. 0 is a model that is always right.

    Example:
        >>> from torch import tensor
        >>> round(aurc(tensor([[0.9, 0.1], [0.6, 0.4]]), tensor([0, 1])), 4)  # risks 0 and 1/2
        0.25
    """
    check_inputs(probabilities, targets)
    return fraction(_risks(probabilities, targets).mean())


@takes_arrays
def excess_aurc(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> float:
    """Compute the excess of the AURC over that of the best order, E-AURC (Geifman et al., ICLR 2019, section 2).

    The best order has all errors last: (1/N) Σ_{i > N−E} (i − N + E)/i with E errors. 0 is a confidence that ranks
    every right prediction above every wrong one, whatever the accuracy is.

    Example:
        >>> from torch import tensor
        >>> excess_aurc(tensor([[0.9, 0.1], [0.6, 0.4]]), tensor([0, 1]))  # the error comes last
        0.0
    """
    check_inputs(probabilities, targets)
    risks = _risks(probabilities, targets)
    place = torch.arange(1, len(risks) + 1, dtype=risks.dtype, device=risks.device)
    errors = risks[-1] * len(risks)
    best = ((place - len(risks) + errors) / place).clamp_min(0.0)
    return fraction((risks.mean() - best.mean()).clamp_min(0.0))


@takes_arrays
def accuracy_at_coverage(
    probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], *, coverage: float = 0.9
) -> float:
    """Compute the accuracy of the ⌈c·N⌉ samples of highest confidence, 1 − risk(c) (Geifman & El-Yaniv, NeurIPS 2017).

    Args:
        probabilities: Rows that sum to 1.
        targets: Class indices.
        coverage: The share c of the samples that are answered, in (0, 1].

    Example:
        >>> from torch import tensor
        >>> accuracy_at_coverage(tensor([[0.9, 0.1], [0.6, 0.4]]), tensor([0, 1]), coverage=0.5)
        1.0
    """
    check_inputs(probabilities, targets)
    if not 0 < coverage <= 1:
        raise wrong("coverage", "in (0, 1]", coverage)
    answered = math.ceil(coverage * len(targets) - 1e-9)  # 0.9 · 10 is 9, not a hair more
    return fraction(1 - _risks(probabilities, targets)[max(answered, 1) - 1])


def _risks(probabilities: Tensor, targets: Tensor) -> Float[Tensor, " n"]:
    """Return the error rate of the i most confident samples, i = 1..N; ties are shared out evenly."""
    confidence, hits = top_label(probabilities, targets)
    doubt, order = (-confidence.detach()).sort()
    errors = (~hits[order]).double()
    total = torch.cat([errors.new_zeros(1), errors.cumsum(0)])
    first, end = torch.searchsorted(doubt, doubt), torch.searchsorted(doubt, doubt, right=True)
    shared = (total[end] - total[first]) / (end - first)
    return shared.cumsum(0) / torch.arange(1, len(shared) + 1, device=shared.device)
