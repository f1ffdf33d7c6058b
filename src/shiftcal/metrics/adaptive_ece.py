"""Adaptive calibration error with equal-mass bins, the paper's ACE."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count
from shiftcal.metrics._inputs import check_inputs, fraction


@takes_arrays
def adaptive_ece(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], *, bins: int = 15) -> float:
    """Compute the adaptive calibration error (1/KM) Σ_k Σ_m |acc_mk − conf_mk| (Nixon et al., CVPR workshops 2019).

    Per class k the samples are sorted by p_k (ascending, stable) and cut into M bins of equal size, the first ones
    a sample larger where N does not divide, as `numpy.array_split` cuts. With fewer samples than bins there
    are as many bins as samples. (In netcal, "ACE" is the *average* calibration error, another quantity.)

    Example:
        >>> from torch import tensor
        >>> round(adaptive_ece(tensor([[0.75, 0.25], [0.75, 0.25]]), tensor([0, 1]), bins=1), 4)
        0.25
    """
    check_inputs(probabilities, targets)
    check_count("bins", bins)
    n = len(probabilities)
    bins = min(bins, n)
    confidence, order = probabilities.double().sort(dim=0, stable=True)
    hits = (targets[order] == torch.arange(probabilities.shape[1], device=order.device)).double()
    size = torch.full((bins,), n // bins, device=probabilities.device)
    size[: n % bins] += 1
    index = torch.arange(bins, device=probabilities.device).repeat_interleave(size, output_size=n)
    excess = torch.zeros(bins, probabilities.shape[1], dtype=torch.float64, device=probabilities.device)
    excess.index_add_(0, index, hits - confidence)
    return fraction((excess / size[:, None]).abs().mean())
