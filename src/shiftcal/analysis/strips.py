"""Strips: the same images untouched, and low-pass filtered with several qualities λ (FGR paper, section 4.1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from shiftcal.filtering import dct_low_pass


def filtered_strips(
    images: UInt8[Tensor, "n 3 height width"], qualities: Sequence[int] = (50, 25, 18, 15, 10, 5)
) -> UInt8[Tensor, "rows n 3 height width"]:
    """Stack images as they are, and filtered with each quality.

    Example:
        >>> filtered_strips(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), (50, 10)).shape
        torch.Size([3, 2, 3, 8, 8])
    """
    return torch.stack([images, *(dct_low_pass(images, quality) for quality in qualities)])
