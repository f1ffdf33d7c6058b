"""What every loss checks and shares: shapes and types, and that targets are classes; no check waits for a GPU."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal._tensors import check_classes, check_labelled


def check_inputs(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Raise unless logits are [N, K ≥ 2] and targets N classes in 0..K−1, masked ones too; −100 is no class.

    Returns the logits in float32 at least.
    """
    rows = check_labelled("logits", logits, targets, mask)
    check_classes(rows, targets)
    return rows


def check_gamma(gamma: float) -> None:
    """Raise unless a focusing parameter is a number of at least 0."""
    if not gamma >= 0:
        raise wrong("gamma", "at least 0", gamma)


def true_class_log_probability(logits: Tensor, targets: Tensor) -> Float[Tensor, " batch"]:
    """Return log p_y."""
    return -torch.nn.functional.cross_entropy(logits, targets.long(), reduction="none")


def distance_to_target(logits: Tensor, targets: Tensor) -> Float[Tensor, "batch classes"]:
    """Return p − onehot(y)."""
    p = logits.softmax(-1)
    return p - (targets[:, None] == torch.arange(logits.shape[1], device=logits.device)).to(p.dtype)


def confidence_and_hits(logits: Tensor, targets: Tensor) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return the probability of the predicted class, and 1 where it is the true one."""
    confidence, prediction = logits.softmax(-1).max(-1)
    return confidence, (prediction == targets).to(confidence.dtype)


def focal_term(
    log_p_y: Float[Tensor, " batch"], gamma: Float[Tensor, " batch"] | float, p_j: Tensor | float = 0.0
) -> Float[Tensor, " batch"]:
    """Return −(1 − p_y + p_j)^γ · log p_y; p_j is the runner-up of the dual focal loss."""
    # 1 − p_y without cancellation; kept off 0, where the power has no finite slope for γ < 1.
    base = (p_j - torch.expm1(log_p_y)).clamp_min(torch.finfo(log_p_y.dtype).tiny)
    return -(base**gamma) * log_p_y


def reduce(values: Float[Tensor, " batch"], reduction: str, mask: Bool[Tensor, " batch"] | None = None) -> Tensor:
    """Apply the reduction `none`, `mean` or `sum` to per-sample values; only those in the mask count."""
    if mask is not None:
        values = values.where(mask, 0.0)
    if reduction == "none":
        return values
    if reduction == "mean":
        return values.mean() if mask is None else values.sum() / mask.sum().clamp(min=1)
    if reduction == "sum":
        return values.sum()
    raise wrong("reduction", "'none', 'mean' or 'sum'", repr(reduction))
