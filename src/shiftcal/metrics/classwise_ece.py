"""Classwise ECE, the paper's CECE."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count
from shiftcal.metrics._inputs import check_inputs, fraction
from shiftcal.metrics.binning import class_bin_sums


@takes_arrays
def classwise_ece(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], *, bins: int = 15) -> float:
    """Compute the classwise calibration error (1/K) Σ_k Σ_m |B_mk|/N · |acc_mk − conf_mk| (Kull et al., NeurIPS 2019).

    For class k, p_k of **all** N samples is binned and compared with how often k is the true class.

    Example:
        >>> from torch import tensor
        >>> round(classwise_ece(tensor([[0.75, 0.25], [0.75, 0.25]]), tensor([0, 1])), 4)
        0.25
    """
    check_inputs(probabilities, targets)
    check_count("bins", bins)
    # The FGR paper divides by n_k, the size of class k; its tables (ECE 23.5 %, CECE 4.9 % at K=10) only fit N.
    return fraction(class_bin_sums(probabilities, targets, bins).expected_error().mean())
