"""Sensor noise."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from shiftcal.corruptions.random import normal


def gaussian_noise(
    x: Float[Tensor, "batch 3 height width"], sigma: float, seed: int, indices: Int[Tensor, " batch"]
) -> Float[Tensor, "batch 3 height width"]:
    """Add white noise, x + σ·ε with ε normal, as in low light (Hendrycks & Dietterich, ICLR 2019)."""
    return x + sigma * normal(seed, 0, indices, tuple(x.shape[1:]))
