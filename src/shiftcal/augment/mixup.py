"""Mixup: convex combinations of two images, and the loss with two targets that goes with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.augment._inputs import check_images


class Mixed(NamedTuple):
    """Mixed images in grey levels 0..255, each one's partner in the batch, and the share λ of the image itself."""

    images: Float[Tensor, "batch 3 height width"]
    partner: Int[Tensor, " batch"]
    share: Float[Tensor, ""]


def mixup(
    images: UInt8[Tensor, "batch 3 height width"], generator: torch.Generator | None = None, *, alpha: float = 0.3
) -> Mixed:
    """Mix each image with another of the batch, λ·x_i + (1 − λ)·x_j with λ ~ Beta(α, α) (Zhang et al., ICLR 2018).

    One λ is drawn per batch and partners are a random permutation, as the authors' code does it.

    Example:
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> mixed = mixup(images, torch.Generator().manual_seed(0))
        >>> mixed.images.shape, mixed.partner.shape, 0 <= mixed.share <= 1
        (torch.Size([8, 3, 32, 32]), torch.Size([8]), tensor(True))
    """
    check_images(images)
    if not 0.01 <= alpha <= 1000:  # beyond, float32 cannot tell λ from 0, ½ or 1
        raise wrong("alpha", "in 0.01..1000", alpha)
    # What torch.distributions.Beta draws with, which takes no generator.
    concentration = torch.full((2,), float(alpha), device=images.device)
    share = torch._sample_dirichlet(concentration, generator=generator)[0]
    partner = torch.randperm(len(images), generator=generator, device=images.device)
    return Mixed(images[partner] + share * (images - images[partner].float()), partner, share)


def mixup_loss(
    loss: Callable[[Tensor, Tensor], Tensor],
    logits: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"],
    partners: Int[Tensor, " batch"],
    share: Float[Tensor, ""] | float,
) -> Float[Tensor, ""]:
    """Compute λ·L(logits, y_i) + (1 − λ)·L(logits, y_j), the loss of mixed images with any main loss L.

    Args:
        loss: The main loss, a function of logits and targets.
        logits: Those of the mixed images.
        targets: Classes y_i.
        partners: Classes y_j, `targets[mixed.partner]`.
        share: λ.

    Example:
        >>> from shiftcal import losses
        >>> y = torch.tensor([0, 1])
        >>> round(mixup_loss(losses.cross_entropy, torch.zeros(2, 4), y, y.flip(0), torch.tensor(0.3)).item(), 4)
        1.3863
    """
    if partners.shape != targets.shape:
        raise wrong("partners", f"of shape {list(targets.shape)}, one per target", list(partners.shape))
    if isinstance(share, Tensor) and share.ndim != 0:
        raise wrong("share", "one number for the batch", list(share.shape))
    return share * loss(logits, targets) + (1 - share) * loss(logits, partners)
