"""The Brier score as a loss."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from shiftcal.losses._inputs import check_inputs, distance_to_target, reduce


def brier(
    logits: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"],
    *,
    reduction: str = "mean",
    mask: Bool[Tensor, " batch"] | None = None,
) -> Float[Tensor, "*batch"]:
    """Compute the Brier score Σ_k (p_k − onehot_k)² (Brier, 1950).

    Args:
        logits: Scores before the softmax.
        targets: Class indices.
        reduction: "none", "mean" or "sum".
        mask: The samples that count, all by default; the others are 0 and not in the mean.

    Example:
        >>> import torch
        >>> brier(torch.zeros(1, 2), torch.tensor([0])).item()
        0.5
    """
    logits = check_inputs(logits, targets, mask)
    return reduce(distance_to_target(logits, targets).square().sum(1), reduction, mask)
