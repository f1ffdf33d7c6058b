"""Maximum mean calibration error."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.losses._inputs import check_inputs, confidence_and_hits


def mmce(
    logits: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"],
    *,
    kernel_width: float = 0.4,
    mask: Bool[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Compute MMCE, Σ_ij (a_i − c_i)(a_j − c_j)·exp(−|c_i − c_j|/w) / N² (Kumar et al., ICML 2018).

    a is 1 where the prediction is right and 0 elsewhere, c its confidence. It is a statistic of the whole batch.

    Args:
        logits: Scores before the softmax.
        targets: Class indices.
        kernel_width: Width w of the Laplacian kernel.
        mask: The samples that count, all by default.

    Example:
        >>> logits = torch.tensor([[9.0, 0.0], [9.0, 0.0]])  # sure of itself, and right every other time
        >>> round(mmce(logits, torch.tensor([0, 1])).item(), 3)
        0.25
    """
    logits = check_inputs(logits, targets, mask)
    if not kernel_width > 0:
        raise wrong("kernel_width", "positive", kernel_width)
    confidence, correct = confidence_and_hits(logits, targets)
    gap = correct - confidence
    size: Tensor | int = len(gap)
    if mask is not None:  # not a product: a sample that does not count may be NaN
        gap, confidence = gap.where(mask, 0.0), confidence.where(mask, 0.0)
        size = mask.sum().clamp(min=1)
    kernel = torch.exp(-(confidence[:, None] - confidence).abs() / kernel_width)
    # Elementwise, not `@`, which autocast would do in half precision.
    return (gap[:, None] * gap * kernel).sum() / size**2
