"""Label smoothing."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.losses._inputs import check_inputs, reduce


def label_smoothing(
    logits: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"],
    *,
    smoothing: float = 0.05,
    reduction: str = "mean",
) -> Float[Tensor, "*batch"]:
    """Compute cross-entropy with smoothed targets, −(1−α)·log p_y − α/K·Σ_k log p_k (Szegedy et al., CVPR 2016).

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> round(label_smoothing(logits, torch.tensor([0]), smoothing=0.1).item(), 4)  # 0.1269 + 0.1/2·2
        0.2269
    """
    logits = check_inputs(logits, targets)
    if not 0 <= smoothing < 1:
        raise wrong("smoothing", "in [0, 1)", smoothing)
    values = torch.nn.functional.cross_entropy(logits, targets.long(), label_smoothing=smoothing, reduction="none")
    return reduce(values, reduction)
