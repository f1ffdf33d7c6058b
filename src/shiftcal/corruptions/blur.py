"""Loss of focus."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def gaussian_blur(
    x: Float[Tensor, "batch 3 height width"], sigma: float, seed: int, indices: Int[Tensor, " batch"]
) -> Float[Tensor, "batch 3 height width"]:
    """Convolve with a Gaussian cut at 4σ, edges replicated (Hendrycks & Dietterich, ICLR 2019)."""
    height, width = x.shape[2:]
    return _blur_matrix(height, sigma, x) @ x @ _blur_matrix(width, sigma, x).T


def _blur_matrix(size: int, sigma: float, like: Tensor) -> Float[Tensor, "size size"]:
    """Write the blur along one side as a matrix; replicated edges add their weight to the first and last column."""
    radius = int(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1, device=like.device)
    weights = torch.exp(-0.5 * (offsets.double() / sigma) ** 2)
    source = (torch.arange(size, device=like.device)[:, None] + offsets).clamp(0, size - 1)
    matrix = torch.zeros(size, size, dtype=torch.float64, device=like.device)
    return matrix.scatter_add_(1, source, (weights / weights.sum()).expand(size, -1)).to(like.dtype)
