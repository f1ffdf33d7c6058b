"""Cross-entropy, the baseline of the comparison."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal.losses._inputs import check_inputs, reduce


def cross_entropy(
    logits: Float[Tensor, "batch classes"], targets: Int[Tensor, " batch"], *, reduction: str = "mean"
) -> Float[Tensor, "*batch"]:
    """Compute cross-entropy, −log p_y.

    It is `torch.nn.functional.cross_entropy` with this package's checks and in float32 at least.

    Example:
        >>> round(cross_entropy(torch.zeros(1, 4), torch.tensor([2])).item(), 4)  # log 4
        1.3863
    """
    logits = check_inputs(logits, targets)
    values = torch.nn.functional.cross_entropy(logits, targets.long(), reduction="none")
    return reduce(values, reduction)
