"""Test sets that are shifted as they are used, on the device they go to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shiftcal.augment import augmix
from shiftcal.data.split import ImageSplit, MemorySplit
from shiftcal.shifts.corruptions import corrupt


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
    """A split whose images are AugMix views of some strength; what is drawn depends on the part, not on the rank."""

    split: ImageSplit
    strength: float

    def to(self, device: torch.device | str) -> Augmented:
        """Augment on a device."""
        return replace(self, split=self.split.to(device))

    def parts(self, size: int, rank: int = 0, world_size: int = 1) -> Iterator[tuple[Tensor, MemorySplit]]:
        """Go through the samples in order, see `data.ImageSplit`."""
        for index, part in self.split.parts(size, rank, world_size):
            seed = 1000 * int(index[0]) + round(10 * self.strength)
            generator = torch.Generator(part.images.device).manual_seed(seed)
            views = augmix(part.images, generator, views=1, severity=self.strength)[0]
            yield index, MemorySplit(views.round().to(torch.uint8), part.targets)
