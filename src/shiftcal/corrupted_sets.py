"""Writing corrupted test sets: every image of a source under every corruption and severity, in the official layouts."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shiftcal._checks import unknown, wrong
from shiftcal._progress import Progress
from shiftcal.corruptions import (
    CONSTANTS,
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    SEVERITIES,
    SMALLEST,
    corrupt,
    frost_source,
)
from shiftcal.corruptions.textures import check_frost
from shiftcal.data.corrupted import MANIFEST
from shiftcal.data.images import (
    EXTENSIONS,
    Array,
    find_images,
    image_size,
    open_array,
    open_images,
    read_image,
    to_tensor,
)
from shiftcal.records import environment, first_difference, is_free, read_object, write_atomically, write_json

Layout = Literal["arrays", "tree"]
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
        for start, images in self._read():
            total += images.numel()
            done = [*done, (start, images)] if total <= _KEPT_BYTES else []
            yield start, images
        self._kept.extend(done)  # if they are all: files need not be decoded again

    def _read(self) -> Iterator[tuple[int, Tensor]]:
        waiting: list[Tensor] = []
        start = 0
        for place, image in enumerate(self._decoded()):
            full = waiting and len(waiting) * image.numel() >= _VALUES_AT_A_TIME
            if full or (waiting and image.shape != waiting[0].shape):
                yield start, torch.stack(waiting)
                waiting, start = [], place
            waiting.append(image)
        yield start, torch.stack(waiting)

    def _decoded(self) -> Iterator[Tensor]:
        """Decode files on all cores, a few hundred ahead."""
        with ThreadPoolExecutor() as pool:
            for first in range(0, len(self.files), 256):
                yield from pool.map(partial(read_image, size=self.size), self.files[first : first + 256])

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


def write_corrupted(
    source: Source,
    destination: Path,
    *,
    names: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    constants: str = "cifar",
    seed: int = 0,
    frost: str | None = None,
    layout: Layout | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> None:
    """Write corrupted test sets; what is there already is kept, so that the same call completes an interrupted one.

    Args:
        source: The clean images.
        destination: A new or empty folder, or one that this function has begun with the same settings.
        names: The corruptions.
        severities: Which of 1 to 5.
        constants: "cifar", "tiny-imagenet" or "imagenet".
        seed: Seed of the random corruptions.
        frost: A folder with photographs of frost, see `corrupt`.
        layout: "arrays", that of CIFAR-10-C, or "tree", that of ImageNet-C. By default arrays for an array and a tree
            for a folder.
        device: Where to compute.
        progress: Show progress.
    """
    layout = layout or ("arrays" if source.array is not None else "tree")
    _check(source, names, severities, constants, layout)
    if "frost" in names:
        check_frost(frost)
    if source.array is None and destination.resolve().is_relative_to(source.root.resolve()):
        raise wrong("destination", "outside the source, of which it would become a part", str(destination))
    severities = sorted(severities)
    manifest = {
        "versions": environment()["versions"],
        "images": len(source),
        "source": source.digest(),
        "layout": layout,
        "severities": severities,
        "constants": constants,
        "seed": seed,
        "size": source.size,
        "frost": frost_source(frost) if "frost" in names else None,
    }
    new = _claim(destination, manifest)
    try:
        options = {"constants": constants, "seed": seed, "frost": frost, "device": device}
        _write(source, destination, names, severities, layout, options, progress)
    except BaseException:  # Ctrl-C too
        if new:
            _unclaim(destination)
        raise


def _write(
    source: Source,
    destination: Path,
    names: Sequence[str],
    severities: Sequence[int],
    layout: Layout,
    options: dict[str, Any],
    progress: bool,
) -> None:
    with Progress("corrupt", len(names) * len(severities) * len(source), enabled=progress) as bar:
        if layout == "arrays":
            _write_labels(source, destination, len(severities))
        for name in names:
            if layout == "arrays":
                _write_array(source, destination, name, severities, options, bar)
            else:
                for severity in severities:
                    _write_tree(source, destination, name, severity, options, bar)
            bar.line(name.replace("_", " "))


def _check(source: Source, names: Sequence[str], severities: Sequence[int], constants: str, layout: str) -> None:
    for name in names:
        if name not in CORRUPTIONS + EXTRA_CORRUPTIONS:
            raise unknown("name", name, CORRUPTIONS + EXTRA_CORRUPTIONS)
    if not names:
        raise wrong("names", "at least one corruption", "none")
    if not severities or not set(severities) <= set(SEVERITIES):
        raise wrong("severities", "one or more of 1, 2, 3, 4, 5", list(severities))
    if constants not in CONSTANTS:
        raise unknown("constants", constants, CONSTANTS)
    if layout not in ("arrays", "tree"):
        raise wrong("layout", "'arrays' or 'tree'", repr(layout))
    if layout == "tree" and source.array is not None:
        raise wrong("layout", "'arrays' for an array, whose images have no file names", repr(layout))


def _claim(destination: Path, manifest: dict[str, Any]) -> bool:
    """Make sure that a folder is free, or holds the beginning of this very set; tell which."""
    if destination.exists() and not destination.is_dir():
        raise wrong("destination", "a folder", f"{destination}, a file")
    path = destination / MANIFEST
    if not path.is_file():
        if not is_free(destination):
            raise wrong(
                "destination", "new, empty, or begun by this command", f"{destination}, which holds other files"
            )
        destination.mkdir(parents=True, exist_ok=True)
        write_json(path, manifest)
        return True
    there = read_object(path)
    ignored: dict[str, Any] = {"versions": None}
    if there.get("frost") is None or manifest["frost"] is None:  # frost may be added later, or left as it is
        ignored["frost"] = None
    differing = first_difference(manifest | ignored, there | ignored)
    if differing:
        raise wrong("destination", "a folder begun with the same settings", f"{destination}, made with {differing}")
    if there.get("frost") is None and manifest["frost"] is not None:
        write_json(path, there | {"frost": manifest["frost"]})
    return False


def _unclaim(destination: Path) -> None:
    """Give a folder back in which nothing was finished."""
    begun = {MANIFEST, "labels.npy"}
    if all(path.name in begun or path.name.startswith(".") for path in destination.iterdir()):
        shutil.rmtree(destination)


def _corrupted(images: Tensor, start: int, name: str, severity: int, options: dict[str, Any]) -> Tensor:
    """Corrupt images, the first of which is the source's `start`-th."""
    options = dict(options)
    device = options.pop("device")
    indices = torch.arange(start, start + len(images), device=device)
    return corrupt(images.to(device), name, severity, indices=indices, **options).cpu()


def _write_array(
    source: Source, folder: Path, name: str, severities: Sequence[int], options: dict[str, Any], bar: Progress
) -> None:
    """Write one file with all severities, under a temporary name until it is whole."""
    final, total = folder / f"{name}.npy", len(severities) * len(source)
    if final.is_file():
        bar.advance(total)
        return
    temporary = folder / f".{name}.npy.{os.getpid()}.tmp"
    try:
        out = _new_array(temporary, total, source)
        for block, severity in enumerate(severities):
            for start, images in source.batches():
                place = block * len(source) + start
                made = _corrupted(images, start, name, severity, options)
                out[place : place + len(images)] = made.permute(0, 2, 3, 1).numpy()
                bar.advance(len(images))
        out.flush()
        _sync(temporary)
        temporary.replace(final)
    except BaseException:  # Ctrl-C too
        temporary.unlink(missing_ok=True)
        raise


def _new_array(path: Path, total: int, source: Source) -> Any:
    """Make a file for all images on disk; they must have one size."""
    sizes = source.side_lengths()
    if len(sizes) > 1:
        raise wrong("layout", "'tree' for images of several sizes (or give a size to cut them to)", "'arrays'")
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(total, *sizes.pop(), 3))
    if hasattr(os, "posix_fallocate"):  # a full disk is found here, not by a crash when pages are written
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return out


def _write_labels(source: Source, folder: Path, repeats: int) -> None:
    """Write the classes, once for each severity as the published file has them, if they are known."""
    if source.targets is None or (folder / "labels.npy").is_file():
        return
    kind = np.uint8 if source.targets.max() < 256 else np.int64
    buffer = io.BytesIO()
    np.save(buffer, np.tile(source.targets.astype(kind), repeats))
    write_atomically(folder / "labels.npy", buffer.getvalue())


def _write_tree(source: Source, folder: Path, name: str, severity: int, options: dict[str, Any], bar: Progress) -> None:
    """Write one severity's files into a hidden folder, renamed when all are there; what is in it is not made again."""
    final, temporary = folder / name / str(severity), folder / name / f".{severity}.tmp"
    if final.is_dir():
        bar.advance(len(source))
        return
    for start, images in source.batches():
        paths = [temporary / path.relative_to(source.root) for path in source.files[start : start + len(images)]]
        if not all(path.is_file() for path in paths):
            made = _corrupted(images, start, name, severity, options)
            for path, image in zip(paths, made, strict=True):
                _save(path, image)
        bar.advance(len(images))
    temporary.rename(final)


def _save(path: Path, image: Tensor) -> None:
    """Write an image in the format of its name; JPEG at quality 85, as the published sets are."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    kind = path.suffix.lower()
    options: dict[str, Any] = {"quality": 85, "optimize": True} if kind in (".jpg", ".jpeg") else {}
    if kind == ".webp":
        options = {"lossless": True}
    buffer = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, Image.registered_extensions()[kind], **options)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(buffer.getvalue())
    temporary.replace(path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def preview(
    source: Source, *, names: Sequence[str], constants: str, seed: int, frost: str | None
) -> tuple[list[str], list[list[Array]]]:
    """Corrupt the source's first image by every name and severity: labels and rows of images for a contact sheet."""
    _check(source, names, SEVERITIES, constants, "arrays")
    image = next(source.batches())[1][:1]
    rows = []
    for name in names:
        made = [corrupt(image, name, s, constants=constants, seed=seed, frost=frost) for s in SEVERITIES]
        rows.append([tile[0].permute(1, 2, 0).numpy() for tile in (image, *made)])
    return list(names), rows
