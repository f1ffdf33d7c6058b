"""Corrupted test sets on disk, in the layouts of CIFAR-10-C and ImageNet-C: the published files or our own.

CIFAR-10-C: `<name>.npy` holds the images of all severities one after the other, 5 × 10,000, and `labels.npy` their
classes. ImageNet-C: `<name>/<severity>/<class>/<file>`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from shiftcal._errors import DataError
from shiftcal._io import read_object
from shiftcal.data.files.images import Array, open_array, open_images, read_image, to_tensor
from shiftcal.data.files.listing import Tree, find_images
from shiftcal.data.split import MemorySplit

MANIFEST = "corrupted.json"
_SEVERITIES = (1, 2, 3, 4, 5)


def load_corrupted(
    root: str | Path, name: str, severity: int, *, classes: tuple[str, ...] | None = None, size: int | None = None
) -> MemorySplit:
    """Load one corruption at one severity from a folder in either layout.

    Args:
        root: The folder with `<name>.npy` files or `<name>/<severity>` folders.
        name: The corruption.
        severity: 1 to 5.
        classes: For the layout of ImageNet-C, the data set's class folders in order: others are left out, as the
            published Tiny-ImageNet-C needs, whose frost has a thousand. By default all folders there are.
        size: The number of images to expect, if known.
    """
    found = _find(Path(root), name, severity, classes, size)
    if isinstance(found, Tree):
        return _decoded(found)
    images, targets = found
    return MemorySplit(to_tensor(images), torch.from_numpy(targets.astype("int64")))


def _find(
    root: Path, name: str, severity: int, classes: tuple[str, ...] | None, size: int | None
) -> tuple[Array, Array] | Tree:
    """Find one corruption at one severity: arrays that are not read yet, or a tree of files."""
    if (root / f"{name}.npy").is_file():
        return _from_array(root, name, severity, size)
    if (root / name / str(severity)).is_dir():
        return _listed(root / name / str(severity), classes, size)
    raise DataError("root", f"a folder with {name}.npy or {name}/{severity}", str(root))


def check_corrupted(root: str | Path, name: str, *, classes: tuple[str, ...] | None = None, size: int) -> None:
    """Raise unless a folder has a corruption at all five severities, see `load_corrupted`. No image is read."""
    for severity in _SEVERITIES:
        _find(Path(root), name, severity, classes, size)


def manifest_of(root: Path) -> dict[str, Any]:
    """Read how a set was made, if it is one of ours; published ones do not tell."""
    return read_object(root / MANIFEST) if (root / MANIFEST).is_file() else {}


def _from_array(root: Path, name: str, severity: int, size: int | None) -> tuple[Array, Array]:
    severities = tuple(manifest_of(root).get("severities", _SEVERITIES))  # published arrays hold all five
    if severity not in severities:
        raise DataError("severity", f"one of {', '.join(map(str, severities))}, which the files hold", severity)
    images = open_images(root / f"{name}.npy")
    count, rest = divmod(len(images), len(severities))
    if rest:
        expected = f"as many images for each of {len(severities)} severities"
        raise DataError("file", expected, f"{root / f'{name}.npy'}: {len(images)} images")
    if size is not None and count != size:
        raise DataError("file", f"{size} images for each severity", f"{root / f'{name}.npy'}: {count}")
    if not (root / "labels.npy").is_file():
        raise DataError("root", f"a folder with labels.npy beside {name}.npy", str(root))
    labels = open_array(root / "labels.npy")
    if labels.shape not in ((len(images),), (count,)) or labels.dtype.kind not in "ui":
        expected = f"{len(images)} class indices (or {count}), as {name}.npy has images"
        raise DataError("file", expected, f"{root / 'labels.npy'}: {labels.dtype} {list(labels.shape)}")
    start = severities.index(severity) * count
    targets = labels[start : start + count] if len(labels) == len(images) else labels
    return images[start : start + count], targets


def _decoded(tree: Tree) -> MemorySplit:
    first = read_image(tree.files[0])
    images = torch.empty(len(tree.files), *first.shape, dtype=torch.uint8)
    for place, path in enumerate(tree.files):
        image = read_image(path)
        if image.shape != first.shape:
            raise DataError(
                "folder", f"one with images of one size, {list(first.shape)}", f"{path}: {list(image.shape)}"
            )
        images[place] = image
    return MemorySplit(images, torch.tensor(tree.targets))


def _listed(folder: Path, classes: tuple[str, ...] | None, size: int | None) -> Tree:
    tree = find_images(folder, classes)
    if size is not None and len(tree.files) != size:
        raise DataError("folder", f"one with {size} images", f"{folder}, with {len(tree.files)}")
    return tree
