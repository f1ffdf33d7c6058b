"""Writing corrupted test sets: every image of a source under every corruption and severity, in the official layouts."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shiftcal._errors import unknown, wrong
from shiftcal._io import first_difference, is_free, read_object, write_atomically, write_json
from shiftcal._lock import locked
from shiftcal._machine import versions
from shiftcal._progress import Progress
from shiftcal.data.files.images import Array
from shiftcal.data.files.unreadable import listing_in
from shiftcal.shifts.corruptions import (
    CONSTANTS,
    CORRUPTIONS,
    SEVERITIES,
    check_name,
    corrupt,
    frost_source,
)
from shiftcal.shifts.corruptions.textures import check_frost
from shiftcal.shifts.read import MANIFEST
from shiftcal.shifts.source import Source

Layout = Literal["arrays", "tree"]


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

    Files that cannot be read are left out and named; one in a hundred or more is an error.

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
    _check_destination(destination)
    with listing_in(destination):
        source = source.readable()
    severities = sorted(severities)
    manifest = {
        "versions": versions(),
        "images": len(source),
        "source": source.digest(),
        "layout": layout,
        "severities": severities,
        "constants": constants,
        "seed": seed,
        "size": source.size,
        "frost": frost_source(frost) if "frost" in names else None,
    }
    with locked(destination):
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
        check_name("name", name)
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


def _check_destination(destination: Path) -> None:
    """Raise unless a folder is free or holds a set of ours."""
    if destination.exists() and not destination.is_dir():
        raise wrong("destination", "a folder", f"{destination}, a file")
    if not (destination / MANIFEST).is_file() and not is_free(destination):
        raise wrong("destination", "new, empty, or begun by this command", f"{destination}, which holds other files")


def _claim(destination: Path, manifest: dict[str, Any]) -> bool:
    """Make sure that a folder is free, or holds the beginning of this very set; tell which."""
    path = destination / MANIFEST
    if not path.is_file():
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
