"""Test sets that are shifted as they are used, on the device they go to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shiftcal.augment._inputs import Rows
from shiftcal.augment.augmix import augmix_of
from shiftcal.data.split import ImageSplit, MemorySplit
from shiftcal.shifts.corruptions import corrupt

_BLOCK = 500  # images whose numbers are drawn together


@dataclass(frozen=True)
class Corrupted:
    """A split whose images are corrupted; an image's corruption depends on its index, not on its batch."""

    split: ImageSplit
    name: str
    severity: int
    constants: str
    frost: str | None = None

    def to(self, device: torch.device | str) -> Corrupted:
        """Corrupt on a device."""
        return replace(self, split=self.split.to(device))

    def parts(self, size: int, rank: int = 0, world_size: int = 1) -> Iterator[tuple[Tensor, MemorySplit]]:
        """Go through the samples in order, see `data.ImageSplit`."""
        for index, part in self.split.parts(size, rank, world_size):
            indices = index.to(part.images.device)
            images = corrupt(
                part.images, self.name, self.severity, constants=self.constants, indices=indices, frost=self.frost
            )
            yield index, MemorySplit(images, part.targets)


@dataclass(frozen=True)
class Augmented:
    """A split whose images are AugMix views of some strength; a view depends on its image's index, not on its batch."""

    split: ImageSplit
    strength: float

    def to(self, device: torch.device | str) -> Augmented:
        """Augment on a device."""
        return replace(self, split=self.split.to(device))

    def parts(self, size: int, rank: int = 0, world_size: int = 1) -> Iterator[tuple[Tensor, MemorySplit]]:
        """Go through the samples in order, see `data.ImageSplit`."""
        for index, part in self.split.parts(size, rank, world_size):
            sizes = (index // _BLOCK).unique_consecutive(return_counts=True)[1].tolist()
            blocks = zip(part.images.split(sizes), index.split(sizes), strict=True)
            views = [self._views(images, own) for images, own in blocks]
            yield index, MemorySplit(torch.cat(views), part.targets)

    def _views(self, images: Tensor, index: Tensor) -> Tensor:
        """Make views of images of one block, for all of which numbers are drawn."""
        first = int(index[0]) // _BLOCK * _BLOCK
        generator = torch.Generator(images.device).manual_seed(1000 * first + round(10 * self.strength))
        rows = Rows(0, min(_BLOCK, len(self.split) - first), index - first)
        return augmix_of(images, generator, views=1, severity=self.strength, rows_of=rows)[0].round().to(torch.uint8)
