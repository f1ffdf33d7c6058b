"""Focal loss, and its schedule FLSD-53."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal.losses._inputs import check_gamma, check_inputs, focal_term, reduce, true_class_log_probability


def focal(
    logits: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"],
    *,
    gamma: float = 3.0,
    reduction: str = "mean",
) -> Float[Tensor, "*batch"]:
    """Compute the focal loss −(1 − p_y)^γ · log p_y (Lin et al., ICCV 2017).

    Example:
        >>> round(focal(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0).item(), 4)  # 0.5 · log 2
        0.3466
    """
    logits = check_inputs(logits, targets)
    check_gamma(gamma)
    return reduce(focal_term(true_class_log_probability(logits, targets), gamma), reduction)


def flsd53(
    logits: Float[Tensor, "batch classes"], targets: Int[Tensor, " batch"], *, reduction: str = "mean"
) -> Float[Tensor, "*batch"]:
    """Compute the sample-dependent focal loss FLSD-53: γ = 5 where p_y < 0.2, else 3 (Mukhoti et al., NeurIPS 2020).

    Example:
        >>> round(flsd53(torch.zeros(1, 2), torch.tensor([0])).item(), 4)  # 0.5³ · log 2
        0.0866
    """
    logits = check_inputs(logits, targets)
    log_p_y = true_class_log_probability(logits, targets)
    gamma = torch.where(log_p_y.detach().exp() < 0.2, 5.0, 3.0)
    return reduce(focal_term(log_p_y, gamma), reduction)
