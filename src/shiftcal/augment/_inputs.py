"""What every augmentation checks."""

from __future__ import annotations

import torch
from torch import Tensor

from shiftcal._checks import wrong
from shiftcal._tensors import check_tensor


def check_images(images: Tensor) -> None:
    """Raise unless images are a batch of uint8 RGB."""
    check_tensor("images", images)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise wrong("images", "uint8 of shape [N, 3, H, W]", f"{images.dtype} {list(images.shape)}")
