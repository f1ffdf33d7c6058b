"""Where clean images come from when corrupted sets are written: an array, or files below class folders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shiftcal._errors import DataError, ImageError, wrong
from shiftcal.data.files.images import Array, image_size, open_array, open_images, read_image, to_tensor
from shiftcal.data.files.listing import EXTENSIONS, find_images
from shiftcal.data.files.unreadable import check_unreadable, name_unreadable
from shiftcal.shifts.corruptions import SMALLEST

_VALUES_AT_A_TIME = 1 << 22
_KEPT_BYTES = 1 << 28  # of decoded files, below which they are kept for the next corruption


@dataclass(frozen=True)
class Source:
    """Where clean images come from: an array of them, or files below class folders; and their classes."""

    array: Array | None
    files: tuple[Path, ...]
    root: Path
    targets: Array | None
    size: int | None = None
    _kept: list[tuple[int, Tensor]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.files) if self.array is None else len(self.array)

    def batches(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the place of the first image and images of one size, as many as fit."""
        if self.array is not None:
            count = max(1, _VALUES_AT_A_TIME // self.array[0].size)
            for start in range(0, len(self.array), count):
                yield start, to_tensor(self.array[start : start + count])
            return
        if self._kept:
            yield from self._kept
            return
        done: list[tuple[int, Tensor]] = []
        total = 0
        for start, images in _batched(self._decoded()):
            total += images.numel()
            done = [*done, (start, images)] if total <= _KEPT_BYTES else []
            yield start, images
        self._kept.extend(done)  # if they are all: files need not be decoded again

    def readable(self) -> Source:
        """Leave out the files that cannot be read, and name them; one in a hundred or more is an error.

        All are decoded for that, and kept for the first corruption if they are few.
        """
        if self.array is not None:
            return self
        failures: dict[int, str] = {}
        images: list[Tensor] = []
        total = 0
        for place, image in enumerate(self._tried()):
            if isinstance(image, str):
                failures[place] = image
                continue
            total += image.numel()
            if total <= _KEPT_BYTES:
                images.append(image)
            else:
                images.clear()
        check_unreadable(list(failures.values()), len(self))
        for number, failure in enumerate(failures.values(), start=1):
            name_unreadable(failure, number, len(self))
        left = [place for place in range(len(self)) if place not in failures]
        kept = list(_batched(iter(images))) if total <= _KEPT_BYTES else []
        targets = None if self.targets is None else self.targets[left]
        return replace(self, files=tuple(self.files[place] for place in left), targets=targets, _kept=kept)

    def _decoded(self) -> Iterator[Tensor]:
        for image in self._tried():
            if isinstance(image, str):
                raise DataError("image", "readable", image)
            yield image

    def _tried(self) -> Iterator[Tensor | str]:
        """Decode files on all cores, a few hundred ahead, or tell what is wrong with them."""
        with ThreadPoolExecutor() as pool:
            for first in range(0, len(self.files), 256):
                yield from pool.map(self._try, self.files[first : first + 256])

    def _try(self, path: Path) -> Tensor | str:
        try:
            return read_image(path, size=self.size)
        except ImageError as error:
            return error.in_words()

    def side_lengths(self) -> set[tuple[int, int]]:
        """List the sizes (height, width) of the images, from the headers of files."""
        if self.array is not None:
            return {(int(self.array.shape[1]), int(self.array.shape[2]))}
        if self.size is not None:
            return {(self.size, self.size)}
        return {image_size(path) for path in self.files}

    def digest(self) -> str:
        """Identify the source: an array by its content, files by their names and sizes, and all by their classes."""
        hasher = hashlib.sha256()
        if self.array is not None:
            hasher.update(str(self.array.shape).encode())
            hasher.update(np.ascontiguousarray(self.array).data)
        if self.targets is not None:
            hasher.update(self.targets.astype(np.int64).tobytes())
        for path in self.files:
            hasher.update(f"{path.relative_to(self.root)}\0{path.stat().st_size}\0".encode())
        return hasher.hexdigest()


def _batched(images: Iterator[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Put images of one size together, as many as fit, each batch with the place of its first."""
    waiting: list[Tensor] = []
    start = 0
    for place, image in enumerate(images):
        full = waiting and len(waiting) * image.numel() >= _VALUES_AT_A_TIME
        if full or (waiting and image.shape != waiting[0].shape):
            yield start, torch.stack(waiting)
            waiting, start = [], place
        waiting.append(image)
    if waiting:
        yield start, torch.stack(waiting)


def open_source(path: Path, *, labels: Path | None = None, size: int | None = None) -> Source:
    """Open an .npy file of images, one image, or a folder of class folders.

    The classes of an array are read from `labels`, by default from labels.npy beside it if there is one.
    """
    if size is not None and size < SMALLEST:
        raise wrong("size", f"at least {SMALLEST}", size)
    if labels is not None and path.suffix != ".npy":
        raise wrong("labels", "left out for files, whose folders tell their classes", str(labels))
    if path.is_dir():
        tree = find_images(path)
        return Source(None, tree.files, path, np.array(tree.targets), size)
    if path.suffix.lower() in EXTENSIONS and path.is_file():
        return Source(None, (path,), path.parent, None, size)
    if path.suffix != ".npy" or not path.is_file():
        raise wrong("source", "an .npy file of images, or a folder with one folder of images for each class", str(path))
    if size is not None:
        raise wrong("size", "left out for an array, whose images have one size", size)
    array = open_images(path)
    labels = labels or (path.parent / "labels.npy" if (path.parent / "labels.npy").is_file() else None)
    targets = None if labels is None else np.asarray(open_array(labels))
    if targets is not None and (targets.shape != (len(array),) or targets.dtype.kind not in "ui"):
        found = f"{labels}: {targets.dtype} {list(targets.shape)}"
        raise wrong("labels", f"{len(array)} class indices, one per image", found)
    if targets is not None and targets.min() < 0:
        raise wrong("labels", "at least 0", int(targets.min()))
    return Source(array, (), path.parent, targets)
