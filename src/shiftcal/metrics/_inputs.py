"""What every metric checks. Metrics are read on the host, so values are checked here, unlike in losses."""

from __future__ import annotations

import typing

import torch
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal._tensors import check_finite, check_indices, check_range, check_rows


def check_inputs(probabilities: Tensor, targets: Tensor) -> None:
    """Raise unless rows are probability distributions over K ≥ 2 classes and targets are class indices.

    Inside `torch.compile`, where values are not there to be read, only shapes and types are checked.
    """
    check_rows("probabilities", probabilities)
    check_indices(targets, len(probabilities))
    if torch.compiler.is_compiling():
        return
    smallest, largest = torch.aminmax(probabilities.detach())
    rounding = 4 * torch.finfo(probabilities.dtype).eps  # a softmax may end a hair above 1
    if not bool((smallest >= 0) & (largest <= 1 + rounding)):  # one pass: a NaN is neither
        check_finite("probabilities", probabilities)
        span = f"[{smallest:.9g}, {largest:.9g}]"
        raise wrong("probabilities", "in [0, 1] (apply softmax to logits first)", span)
    low, high = torch.aminmax(probabilities.detach().sum(1, dtype=torch.float64))
    tolerance = 1e-3 if probabilities.dtype in (torch.float32, torch.float64) else 2e-2
    if not bool((low > 1 - tolerance) & (high < 1 + tolerance)):
        raise wrong("probabilities", "of rows that sum to 1", f"row sums in [{low:.4g}, {high:.4g}]")
    check_range(targets, probabilities.shape[1])


def fraction(value: Tensor) -> float:
    """Read a metric's value; inside `torch.compile` it stays a tensor on its device."""
    return typing.cast(float, value) if torch.compiler.is_compiling() else float(value.detach())
