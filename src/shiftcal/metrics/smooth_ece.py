"""Smooth calibration error."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal.metrics._inputs import check_inputs
from shiftcal.metrics.binning import top_label

_SMALLEST_WIDTH = 0.001


def smooth_ece(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> float:
    """Compute SmoothECE of the predicted class, smECE_σ at the σ that equals it (Błasiok & Nakkiran, ICLR 2024).

    smECE_σ = ∫ |Σ_i K_σ(t, c_i)·(a_i − c_i)| dt / N with confidence c_i, a_i = 1 where the prediction is right, and a
    Gaussian kernel reflected at 0 and 1. There are no bins to choose: bisection finds the width that equals the error.

    Example:
        >>> p = torch.tensor([[0.75, 0.25]]).repeat(100, 1)
        >>> round(smooth_ece(p, torch.arange(100) % 2), 2)  # 75 % sure, 50 % right
        0.25
    """
    check_inputs(probabilities, targets)
    confidence, correct = top_label(probabilities, targets)
    c, residual = confidence.double(), correct.double() - confidence.double()
    low, high = 0.0, 1.0
    for _ in range(10):  # as many halvings as the authors' package takes
        width = (low + high) / 2
        if width < _SMALLEST_WIDTH or width < _error_at(c, residual, width):
            low = width
        else:
            high = width
    return _error_at(c, residual, high)


def _error_at(c: Float[Tensor, " n"], residual: Float[Tensor, " n"], width: float) -> float:
    """Compute smECE at one width: sum residuals on a fine mesh, smooth them there, and integrate."""
    points = max(200, round(10 / width))
    mesh_residual, mesh_count = _on_mesh(c, residual, points), _on_mesh(c, torch.ones_like(c), points)
    smoothed, density = _smooth(torch.stack([mesh_residual, mesh_count]), width)
    return float(smoothed.abs().sum() / density.sum())


def _on_mesh(c: Float[Tensor, " n"], values: Float[Tensor, " n"], points: int) -> Float[Tensor, " points"]:
    """Share each value between the two mesh points around it, in proportion to their nearness."""
    position = c * (points - 1)
    left = position.floor().clamp(0, points - 2)
    nearness = position - left
    mesh = torch.zeros(points, dtype=c.dtype, device=c.device)
    mesh.index_add_(0, left.long(), values * (1 - nearness))
    return mesh.index_add_(0, left.long() + 1, values * nearness)


def _smooth(mesh: Float[Tensor, "rows points"], width: float) -> Float[Tensor, "rows points"]:
    """Convolve with a Gaussian whose mass beyond 0 and 1 is reflected, as often as it takes."""
    points = mesh.shape[1]
    t = torch.arange(points, dtype=mesh.dtype, device=mesh.device) / (points - 1)
    reflections = range(-math.ceil(2 * width) - 1, math.ceil(2 * width) + 2)
    kernel = torch.zeros(points, points, dtype=mesh.dtype, device=mesh.device)
    for r in reflections:
        for image in (2 * r + t, 2 * r - t):
            kernel += torch.exp(-((t[:, None] - image) ** 2) / (2 * width**2))
    return mesh @ (kernel / kernel.sum(0)).T  # every sample keeps its mass
