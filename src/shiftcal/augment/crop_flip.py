"""Random crop and horizontal flip, for a whole batch at once on its device."""

from __future__ import annotations

import torch
from jaxtyping import UInt8
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.augment._inputs import Rows, check_images


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
    if not isinstance(padding, int) or padding < 0:
        raise wrong("padding", "an integer of at least 0", padding)
    return crop_and_flip(images, generator, padding)


def crop_and_flip(
    images: Tensor, generator: torch.Generator | None, padding: int = 4, rows_of: Rows | None = None
) -> Tensor:
    """Crop and flip stored images, which need no checks, see `crop_flip`; they may be rows of a larger batch."""
    n, _, height, width = images.shape
    device, total = images.device, n if rows_of is None else rows_of.total
    corner = torch.randint(0, 2 * padding + 1, (2, total, 1), generator=generator, device=device)
    mirrored = torch.rand(total, 1, generator=generator, device=device) < 0.5
    if rows_of is not None:
        index = rows_of.index(n, device)
        corner, mirrored = corner[:, index], mirrored[index]
    top, left = corner
    rows = torch.arange(height, device=device) + top
    columns = torch.arange(width, device=device)
    columns = torch.where(mirrored, width - 1 - columns, columns) + left
    # Pixels are moved whole, with the channel last in memory, which is also the order that convolutions like best.
    tall, wide = height + 2 * padding, width + 2 * padding
    padded = torch.zeros(n, tall, wide, 3, dtype=torch.uint8, device=device)
    padded[:, padding : padding + height, padding : padding + width] = images.permute(0, 2, 3, 1)
    place = (
        torch.arange(n, device=device)[:, None, None] * (tall * wide) + rows[:, :, None] * wide + columns[:, None, :]
    )
    return padded.view(-1, 3).index_select(0, place.flatten()).view(n, height, width, 3).permute(0, 3, 1, 2)
