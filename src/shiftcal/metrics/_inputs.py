"""What every metric checks. Metrics are read on the host, so values are checked here, unlike in losses."""

from __future__ import annotations

import torch
from torch import Tensor

from shiftcal._checks import wrong
from shiftcal._tensors import check_finite, check_indices, check_range, check_rows


def check_inputs(probabilities: Tensor, targets: Tensor) -> None:
    """Raise unless rows are probability distributions over K ≥ 2 classes and targets are class indices."""
    check_rows("probabilities", probabilities)
    check_indices(targets, len(probabilities))
    check_finite("probabilities", probabilities)
    if bool(((probabilities < 0) | (probabilities > 1)).any()):
        span = f"[{probabilities.min():.9g}, {probabilities.max():.9g}]"
        raise wrong("probabilities", "in [0, 1] (apply softmax to logits first)", span)
    total = probabilities.double().sum(1)
    tolerance = 1e-3 if probabilities.dtype in (torch.float32, torch.float64) else 2e-2
    if bool(((total - 1).abs() > tolerance).any()):
        raise wrong("probabilities", "of rows that sum to 1", f"row sums in [{total.min():.4g}, {total.max():.4g}]")
    check_range(targets, probabilities.shape[1])


def check_bins(bins: int) -> None:
    """Raise unless the number of bins is a positive integer."""
    if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
        raise wrong("bins", "an integer of at least 1", bins)
