"""Smooth calibration error."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal.metrics._inputs import check_inputs, fraction
from shiftcal.metrics.binning import top_label

_SMALLEST_WIDTH = 0.001
_POINTS = 8192  # mesh points from 0 to 1, eight in the smallest width


@takes_arrays
def smooth_ece(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> float:
    """Compute SmoothECE of the predicted class, smECE_σ at the σ that equals it (Błasiok & Nakkiran, ICLR 2024).

    smECE_σ = ∫ |Σ_i K_σ(t, c_i)·(a_i − c_i)| dt / N with confidence c_i, a_i = 1 where the prediction is right, and a
    Gaussian kernel reflected at 0 and 1. There are no bins to choose: bisection finds the width that equals the error.
    Its authors' package, relplot, has a coarser mesh and gives other values where many confidences are almost 1.

    Example:
        >>> p = torch.tensor([[0.75, 0.25]]).repeat(100, 1)
        >>> round(smooth_ece(p, torch.arange(100) % 2), 2)  # 75 % sure, 50 % right
        0.25
    """
    check_inputs(probabilities, targets)
    confidence, correct = top_label(probabilities, targets)
    c = confidence.double()
    # On a circle of circumference 2, where t and −t carry the same, reflection at 0 and 1 happens by itself.
    spectrum = torch.fft.rfft(_on_circle(c, correct.double() - c))

    def error_at(width: Tensor) -> Tensor:
        frequency = math.pi * torch.arange(len(spectrum), dtype=c.dtype, device=c.device)
        smoothed = torch.fft.irfft(spectrum * torch.exp(-((frequency * width) ** 2) / 2), n=2 * _POINTS)
        total: Tensor = smoothed.abs().sum()
        return total / (2 * len(c))

    low, high = torch.zeros((), dtype=c.dtype, device=c.device), torch.ones((), dtype=c.dtype, device=c.device)
    for _ in range(10):  # as many halvings as the authors' package takes
        width = (low + high) / 2
        wider = (width < _SMALLEST_WIDTH) | (width < error_at(width))
        low, high = torch.where(wider, width, low), torch.where(wider, high, width)
    return fraction(error_at(high))


def _on_circle(c: Float[Tensor, " n"], values: Float[Tensor, " n"]) -> Float[Tensor, " points"]:
    """Put each value at c and at −c, shared between the two mesh points around in proportion to their nearness."""
    position = c * _POINTS
    left = position.floor()
    nearness = position - left
    mesh = torch.zeros(2 * _POINTS, dtype=c.dtype, device=c.device)
    for point, share in ((left.long(), 1 - nearness), (left.long() + 1, nearness)):
        for index in (point, -point):
            mesh = mesh.index_add(0, index.remainder(2 * _POINTS), values * share)
    return mesh
