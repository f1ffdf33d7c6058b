"""Random crop and horizontal flip, for a whole batch at once on its device."""

from __future__ import annotations

import torch
from jaxtyping import UInt8
from torch import Tensor

from shiftcal.augment._inputs import check_count, check_images


def crop_flip(
    images: UInt8[Tensor, "batch 3 height width"], generator: torch.Generator | None = None, *, padding: int = 4
) -> UInt8[Tensor, "batch 3 height width"]:
    """Shift each image by up to `padding` pixels over black borders and mirror it with probability ½.

    It is torchvision's `RandomCrop(size, padding=4)` followed by `RandomHorizontalFlip()`, drawn per image.

    Example:
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> crop_flip(images, torch.Generator().manual_seed(0)).shape
        torch.Size([8, 3, 32, 32])
    """
    check_images(images)
    check_count("padding", padding, least=0)
    n, _, height, width = images.shape
    device = images.device
    top, left = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator, device=device)
    mirrored = torch.rand(n, 1, generator=generator, device=device) < 0.5
    rows = torch.arange(height, device=device) + top
    columns = torch.arange(width, device=device)
    columns = torch.where(mirrored, width - 1 - columns, columns) + left
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    sample = torch.arange(n, device=device)[:, None, None]
    # Indexing puts the channel last in memory, which is the order that convolutions like best.
    return padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
