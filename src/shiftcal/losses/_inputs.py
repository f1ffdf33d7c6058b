"""What every loss checks and shares: shapes and types, never values (reading values would stall a GPU step)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from shiftcal._checks import wrong
from shiftcal._tensors import check_indices, check_rows


def check_inputs(logits: Tensor, targets: Tensor) -> None:
    """Raise unless logits are floating [N, K ≥ 2] and targets integers [N]."""
    check_rows("logits", logits)
    check_indices(targets, len(logits))


def check_mask(mask: Tensor | None, size: int) -> None:
    """Raise unless the mask, if there is one, has one boolean per sample."""
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (size,)):
        raise wrong("mask", f"{size} booleans, one per sample", f"{mask.dtype} {list(mask.shape)}")


def at_least_float32(logits: Tensor) -> Tensor:
    """Widen half precision, in which probabilities near 1 cannot be told apart."""
    return logits if logits.dtype == torch.float64 else logits.float()


def reduce(values: Float[Tensor, " batch"], reduction: str) -> Tensor:
    """Apply the reduction `none`, `mean` or `sum` to per-sample values."""
    if reduction == "none":
        return values
    if reduction == "mean":
        return values.mean()
    if reduction == "sum":
        return values.sum()
    raise wrong("reduction", "'none', 'mean' or 'sum'", repr(reduction))
