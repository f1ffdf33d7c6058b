"""Expected and maximum calibration error of the predicted class."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count
from shiftcal.metrics._inputs import check_inputs, fraction
from shiftcal.metrics.binning import bin_sums, top_label


@takes_arrays
def ece(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], *, bins: int = 15) -> float:
    """Compute the expected calibration error Σ_m |B_m|/N · |acc_m − conf_m| (FGR paper, equation 2).

    It is Guo et al.'s (ICML 2017). Bins are ((m−1)/M, m/M]: confidence exactly 1 is in the last one.

    Example:
        >>> from torch import tensor
        >>> round(ece(tensor([[0.75, 0.25], [0.75, 0.25]]), tensor([0, 1])), 4)  # 75 % sure, 50 % right
        0.25
    """
    check_inputs(probabilities, targets)
    check_count("bins", bins)
    return fraction(bin_sums(*top_label(probabilities, targets), bins).expected_error())


@takes_arrays
def mce(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], *, bins: int = 15) -> float:
    """Compute the maximum calibration error max_m |acc_m − conf_m| over filled bins (Naeini et al., AAAI 2015).

    Example:
        >>> from torch import tensor
        >>> round(mce(tensor([[0.75, 0.25], [0.5, 0.5]]), tensor([0, 1])), 4)
        0.5
    """
    check_inputs(probabilities, targets)
    check_count("bins", bins)
    return fraction(bin_sums(*top_label(probabilities, targets), bins).gap().max())
