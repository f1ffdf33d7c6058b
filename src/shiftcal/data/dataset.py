"""What a data set is to the rest of the package."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.nn import functional

from shiftcal._checks import unknown, wrong
from shiftcal._tensors import check_indices, check_range
from shiftcal.data.decode import Decoder
from shiftcal.data.images import Fit, image_size, read_images

Loader = Literal["auto", "memory", "stream"]
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_SHARE = 8  # a set goes into memory if it takes less than an eighth of it: D_mix is a copy, and there are several sets


@dataclass(frozen=True)
class Split:
    """Images and their classes."""

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

    def take(self, chosen: Bool[Tensor, " n"]) -> Split:
        """Keep the chosen samples."""
        return Split(self.images[chosen], self.targets[chosen])

    def to(self, device: torch.device | str) -> Split:
        """Move to a device."""
        return Split(self.images.to(device), self.targets.to(device))

    def parts(self, size: int, first: int = 0, every: int = 1) -> Iterator[tuple[Int[Tensor, " n"], Split]]:
        """Go through the samples in order, some at a time, each part with the indices of its samples.

        Of several processes that share the work, each asks for `every` so manyth part.
        """
        for start in range(first * size, len(self), every * size):
            end = min(start + size, len(self))
            yield torch.arange(start, end), Split(self.images[start:end], self.targets[start:end])


@dataclass(frozen=True)
class FileSplit:
    """Images on disk, which are decoded when they are asked for, and their classes."""

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
        return (3, self.size, self.size) if self.size is not None else (3, *image_size(self.files[0]))

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

    def parts(self, size: int, first: int = 0, every: int = 1) -> Iterator[tuple[Int[Tensor, " n"], Split]]:
        """Go through the samples in order, some at a time; those that cannot be read are left out."""
        indices = torch.arange(len(self)).split(size)[first::every]
        pin = torch.device(self.device).type == "cuda"
        for index, images in self.decoder.batches(indices, pin=pin):
            yield index, Split(images.to(self.device), self.targets[index].to(self.device))


AnySplit = Split | FileSplit


def read_split(
    files: Sequence[Path],
    targets: Sequence[int],
    *,
    size: int | None = None,
    fit: Fit = "crop",
    loader: Loader = "auto",
    title: str = "read",
    progress: bool = True,
) -> AnySplit:
    """Read files into memory, or keep their names and decode them while training if they are too many.

    Of those read, the classes of the readable ones are kept, see `read_images`.
    """
    if loader not in ("auto", "memory", "stream"):
        raise unknown("data.loader", loader, ("auto", "memory", "stream"))
    if not files:
        raise wrong("images", "at least one", "none")
    if loader == "stream" or (loader == "auto" and not fits_memory(files, size)):
        return FileSplit(tuple(files), torch.tensor(targets), size, fit)
    images, readable = read_images(files, size=size, fit=fit, title=title, progress=progress)
    return Split(images, torch.tensor(targets)[readable])


def fits_memory(files: Sequence[Path], size: int | None) -> bool:
    """Tell whether images are few and small enough to be kept in memory; without `size`, the first tells theirs."""
    height, width = (size, size) if size is not None else image_size(files[0])
    return len(files) * 3 * height * width <= memory_limit()


def memory_limit() -> int:
    """Return how many bytes a set may have to be kept in memory: an eighth of the host's and of the GPU's."""
    device = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else host_memory()
    return min(host_memory(), device) // _SHARE


def host_memory() -> int:
    """Return the bytes of memory that the machine has or this process may use, or 8 GB where that is not told."""
    if not hasattr(os, "sysconf"):
        return 8 * 10**9
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:  # of a container or a batch job
        text = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        whole = min(whole, int(text)) if text.isdigit() else whole
    return whole


def join(splits: Sequence[AnySplit]) -> AnySplit:
    """Put sets one after the other; all are in memory or none is."""
    targets = torch.cat([split.targets for split in splits])
    in_memory = [split for split in splits if isinstance(split, Split)]
    if len(in_memory) == len(splits):
        return Split(torch.cat([split.images for split in in_memory]), targets)
    on_disk = [split for split in splits if isinstance(split, FileSplit)]
    if len(on_disk) < len(splits):
        raise wrong("splits", "all in memory, or none", "both kinds")
    return replace(on_disk[0], files=sum((split.files for split in on_disk), ()), targets=targets)


@dataclass(frozen=True)
class Dataset:
    """Training, validation and test images of one source, and the shifts that only this source can make.

    `shifts` maps a shift's name to its test sets by severity, mildest first; corruptions that work on any image are
    not listed here. `besides` are further test sets, which are reported but are no part of the mean over the shifts.
    Models take images of `input_size` pixels square, where that is not the size they are stored in.
    """

    name: str
    classes: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    train: AnySplit
    validation: AnySplit
    test: AnySplit
    shifts: Mapping[str, tuple[AnySplit, ...]] = field(default_factory=dict)
    besides: Mapping[str, AnySplit] = field(default_factory=dict)
    input_size: int | None = None

    def __post_init__(self) -> None:
        for split in (self.train, self.validation, self.test):
            check_range(split.targets, len(self.classes))

    def with_workers(self, workers: int) -> Dataset:
        """Let as many processes decode images that are read from disk."""

        def change(split: AnySplit) -> AnySplit:
            return replace(split, workers=workers) if isinstance(split, FileSplit) else split

        return replace(
            self,
            train=change(self.train),
            validation=change(self.validation),
            test=change(self.test),
            shifts={name: tuple(map(change, splits)) for name, splits in self.shifts.items()},
            besides={name: change(split) for name, split in self.besides.items()},
        )

    def normalise(
        self, images: UInt8[Tensor, "n 3 height width"] | Float[Tensor, "n 3 height width"]
    ) -> Float[Tensor, "n 3 rows columns"]:
        """Turn images in grey levels 0..255 into what a model takes, with the channel last in memory."""
        if self.input_size is not None and images.shape[-2:] != (self.input_size, self.input_size):
            images = resized(images, self.input_size)
        n, _, height, width = images.shape
        mean, std = (_as_row(values, width, images.device) for values in (self.mean, self.std))
        rows = images.permute(0, 2, 3, 1).reshape(-1, 3 * width)  # long rows: an innermost dimension of three is slow
        values = (rows / 255).sub_(mean).div_(std)
        return values.view(n, height, width, 3).permute(0, 3, 1, 2)

    def truncated(self, images: UInt8[Tensor, "n 3 height width"]) -> UInt8[Tensor, "n 3 height width"]:
        """Normalise images in float32, undo it and cut the levels to 8 bits, by which some lose one.

        FGR's released code filters images so.
        """
        mean, std = (torch.tensor(values, device=images.device)[:, None, None] for values in (self.mean, self.std))
        values = (images.float() / 255 - mean) / std
        return ((values * std + mean).clamp(0, 1) * 255).to(torch.uint8)


def resized(images: Tensor, size: int) -> Float[Tensor, "n 3 size size"]:
    """Enlarge or shrink images to a square, as Pillow's bilinear resampling would but for rounding to grey levels."""
    return functional.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)


@cache
def _as_row(values: tuple[float, ...], width: int, device: torch.device) -> Float[Tensor, " row"]:
    """Repeat the channels' constants for a row of pixels; copied to a device once, since each copy waits."""
    return torch.tensor(values, device=device).repeat(width)
