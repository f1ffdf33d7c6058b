"""Brier-score-weighted cross-entropy."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.losses._inputs import check_gamma, check_inputs, distance_to_target, reduce, true_class_log_probability


def bsce_gra(
    logits: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"],
    *,
    gamma: float = 1.0,
    norm: float = 1.0,
    reduction: str = "mean",
) -> Float[Tensor, "*batch"]:
    """Compute BSCE-GRA, stop_gradient(‖onehot(y) − p‖_norm^γ) · (−log p_y) (Lin et al., CVPR 2025).

    The weight scales the gradient of cross-entropy by how uncertain the sample is, and carries no gradient itself.

    Example:
        >>> round(bsce_gra(torch.zeros(1, 2), torch.tensor([0]), gamma=2.0).item(), 4)  # ‖(½, −½)‖₁² · log 2
        0.6931
    """
    logits = check_inputs(logits, targets)
    check_gamma(gamma)
    if not norm > 0:
        raise wrong("norm", "positive", norm)
    with torch.no_grad():
        weight = distance_to_target(logits, targets).norm(p=norm, dim=1) ** gamma
    return reduce(-weight * true_class_log_probability(logits, targets), reduction)
