"""What every augmentation checks and shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal._tensors import check_tensor


@dataclass(frozen=True)
class Rows:
    """Which rows of a whole batch some images are: numbers are drawn for all of it, so that ranks draw different ones.

    Attributes:
        start: The first row.
        total: How many rows the whole batch has.
        places: The rows, where they do not follow one another.
    """

    start: int
    total: int
    places: Int[Tensor, " images"] | None = None

    def index(self, count: int, device: torch.device) -> Int[Tensor, " count"]:
        """Return the places of `count` images."""
        if self.places is not None:
            return self.places.to(device)
        return (torch.arange(count, device=device) + self.start) % self.total


def check_images(images: Tensor) -> None:
    """Raise unless images are a batch of uint8 RGB."""
    if not isinstance(images, Tensor):
        check_tensor("images", images)
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise wrong("images", "uint8 of shape [N, 3, H, W]", f"{images.dtype} {list(images.shape)}")


def on_chosen(
    operation: Callable[..., Tensor], images: Tensor, chosen: Bool[Tensor, " batch"], *magnitudes: Tensor
) -> Tensor:
    """Apply an operation to the chosen images, in place where that is faster, and leave the others as they are."""
    if images.device.type == "cpu" and not torch.compiler.is_compiling():
        index = chosen.nonzero().squeeze(1)
        return images.index_copy_(0, index, operation(images[index], *(m[index] for m in magnitudes)))
    # Elsewhere the number of chosen images would have to be read back from the device.
    return torch.where(chosen[:, None, None, None], operation(images, *magnitudes), images)
