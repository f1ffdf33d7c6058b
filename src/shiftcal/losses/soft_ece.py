"""Soft-binned ECE, the calibration constraint of FGR."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from shiftcal._errors import check_count, wrong
from shiftcal.losses._inputs import check_inputs, confidence_and_hits


def soft_ece(
    logits: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"],
    *,
    bins: int = 15,
    temperature: float = 0.1,
    centres: Literal["midpoints", "ends"] = "midpoints",
    mask: Bool[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Compute the L2 soft-binned calibration error (Karandikar et al., NeurIPS 2021; FGR paper, equation 10).

    With confidence c_i, bin centres ξ_m = (m − 0.5)/M and memberships u_im = softmax_m(−(c_i − ξ_m)²/t),
    it is (Σ_m |S_m|/N · (acc_m − conf_m)²)^½, where |S_m| = Σ_i u_im and acc_m, conf_m are means weighted by u_im.
    It is a statistic of the whole batch, so there is no `reduction`.

    Args:
        logits: Scores before the softmax.
        targets: Class indices.
        bins: Number of bins M.
        temperature: Softness t of the memberships.
        centres: Where the bin centres are. "midpoints": ξ_m as above. "ends": M points from 0 to 1, both included, as
            in the FGR authors' released code.
        mask: The samples that count, all by default. A mask keeps shapes fixed where a selection would not.

    Example:
        >>> logits = torch.tensor([[9.0, 0.0], [9.0, 0.0]])  # sure of itself, and right every other time
        >>> round(soft_ece(logits, torch.tensor([0, 1])).item(), 3)
        0.5
    """
    logits = check_inputs(logits, targets, mask)
    check_count("bins", bins)
    if not temperature > 0:
        raise wrong("temperature", "positive", temperature)
    confidence, correct = confidence_and_hits(logits, targets)
    xi = _bin_centres(bins, centres, confidence)
    u = (-((confidence[:, None] - xi) ** 2) / temperature).softmax(-1)
    excess = correct - confidence
    if mask is not None:  # not a product: a sample that does not count may be NaN
        u, excess = u.where(mask[:, None], 0.0), excess.where(mask, 0.0)
    size = u.sum(0) + 1e-12
    gap = (u * excess[:, None]).sum(0) / size  # acc_m − conf_m
    squared = (size * gap**2).sum() / size.sum()
    # The root has no finite slope at 0, so that a perfectly calibrated batch takes the slope 0 instead.
    zero = squared <= torch.finfo(squared.dtype).tiny
    return torch.where(zero, 0.0, squared.where(~zero, 1.0).sqrt())


def _bin_centres(bins: int, centres: str, like: Tensor) -> Float[Tensor, " bins"]:
    if centres == "midpoints":
        return (torch.arange(bins, dtype=like.dtype, device=like.device) + 0.5) / bins
    if centres == "ends":
        return torch.linspace(0, 1, bins, dtype=like.dtype, device=like.device)
    raise wrong("centres", "'midpoints' or 'ends'", repr(centres))
