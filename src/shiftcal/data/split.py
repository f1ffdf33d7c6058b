"""A split: samples with a class each. In memory, on disk, or as features of a frozen network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from shiftcal._errors import DataError, wrong
from shiftcal._tensors import check_indices
from shiftcal.data.files.decode import ONE_SIZE, Decoder, two_sizes
from shiftcal.data.files.images import Fit, first_size, try_image


@runtime_checkable
class Split(Protocol):
    """Samples with a class each, of which epochs are drawn."""

    @property
    def targets(self) -> Int[Tensor, " n"]:
        """Their classes."""

    def __len__(self) -> int: ...

    def to(self, device: torch.device | str) -> Split:
        """Return the split with its samples delivered on a device."""


@runtime_checkable
class ImageSplit(Split, Protocol):
    """Stored images with a class each, which can be gone through in order."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""

    def to(self, device: torch.device | str) -> ImageSplit:
        """Return the split with its images delivered on a device."""

    def take(self, chosen: Bool[Tensor, " n"]) -> ImageSplit:
        """Keep the chosen samples."""

    def parts(self, size: int, rank: int = 0, world_size: int = 1) -> Iterator[tuple[Tensor, MemorySplit]]:
        """Go through the samples in order, `size` at a time, each part with the indices of its samples.

        Where ranks share the work, rank r of R gets the parts r, r + R, r + 2R, ….
        """


@dataclass(frozen=True, eq=False)
class MemorySplit:
    """Images in memory, and their classes."""

    images: UInt8[Tensor, "n 3 height width"]
    targets: Int[Tensor, " n"]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise wrong("images", "uint8 of shape [N, 3, H, W]", f"{self.images.dtype} {list(self.images.shape)}")
        check_indices(self.targets, len(self.images))

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (3, *self.images.shape[2:])

    def take(self, chosen: Bool[Tensor, " n"]) -> MemorySplit:
        """Keep the chosen samples."""
        return MemorySplit(self.images[chosen], self.targets[chosen])

    def to(self, device: torch.device | str) -> MemorySplit:
        """Move to a device."""
        return MemorySplit(self.images.to(device), self.targets.to(device))

    def parts(self, size: int, rank: int = 0, world_size: int = 1) -> Iterator[tuple[Tensor, MemorySplit]]:
        """Go through the samples in order, see `ImageSplit`."""
        for start in range(rank * size, len(self), world_size * size):
            end = min(start + size, len(self))
            yield torch.arange(start, end), MemorySplit(self.images[start:end], self.targets[start:end])


@dataclass(frozen=True, eq=False)
class FileSplit:
    """Images on disk, which are decoded when they are used, and their classes."""

    files: tuple[Path, ...]
    targets: Int[Tensor, " n"]
    size: int | None = None
    fit: Fit = "crop"
    workers: int | None = None
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        check_indices(self.targets, len(self.files))

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image as it is decoded."""
        return (3, self.size, self.size) if self.size is not None else (3, *first_size(self.files))

    @cached_property
    def decoder(self) -> Decoder:
        """What reads the images, and remembers which could not be read."""
        return Decoder(self.files, self.size, self.fit, self.workers)

    def take(self, chosen: Bool[Tensor, " n"]) -> FileSplit:
        """Keep the chosen samples."""
        files = tuple(self.files[place] for place in chosen.nonzero().squeeze(1).tolist())
        return replace(self, files=files, targets=self.targets[chosen])

    def to(self, device: torch.device | str) -> FileSplit:
        """Let decoded images go to a device; file names and classes stay on the host."""
        return replace(self, device=device)

    def parts(self, size: int, rank: int = 0, world_size: int = 1) -> Iterator[tuple[Tensor, MemorySplit]]:
        """Go through the samples in order, see `ImageSplit`; those that cannot be read are left out."""
        indices = torch.arange(len(self)).split(size)[rank::world_size]
        pin = torch.device(self.device).type == "cuda"
        for index, images in self.decoder.batches(indices, pin=pin):
            yield index, MemorySplit(images.to(self.device), self.targets[index].to(self.device))


@dataclass(frozen=True, eq=False)
class FeatureSplit:
    """What a frozen network's classifier gets of images: views of the originals, and of them low-pass filtered."""

    original: Float[Tensor, "views n width"]
    filtered: Float[Tensor, "filtered_views n width"]
    targets: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device | str) -> FeatureSplit:
        """Move to a device."""
        return FeatureSplit(self.original.to(device), self.filtered.to(device), self.targets.to(device))


def first_of(split: ImageSplit, n: int) -> MemorySplit:
    """Return the first n images that can be read, to look at: the rule for those that cannot is about all of them."""
    if not isinstance(split, FileSplit):
        _, part = next(iter(split.take(torch.arange(len(split), device=split.targets.device) < n).parts(n)))
        return part
    places, images = [], list[Tensor]()
    for place, file in enumerate(split.files):
        image = try_image(split.size, split.fit, file)
        if isinstance(image, Tensor):
            places.append(place)
            images.append(image)
        if len(images) == n:
            break
    if not images:
        raise DataError("images", "at least one that can be read", f"none of {len(split)}, such as {split.files[0]}")
    if sizes := two_sizes(images):
        raise DataError("images", ONE_SIZE, sizes)
    return MemorySplit(torch.stack(images), split.targets[places]).to(split.device)


def join(splits: Sequence[ImageSplit]) -> ImageSplit:
    """Concatenate splits; all are in memory or none is."""
    targets = torch.cat([split.targets for split in splits])
    in_memory = [split for split in splits if isinstance(split, MemorySplit)]
    if len(in_memory) == len(splits):
        return MemorySplit(torch.cat([split.images for split in in_memory]), targets)
    on_disk = [split for split in splits if isinstance(split, FileSplit)]
    if len(on_disk) < len(splits):
        raise wrong("splits", "all in memory, or none", "both kinds")
    return replace(on_disk[0], files=sum((split.files for split in on_disk), ()), targets=targets)
