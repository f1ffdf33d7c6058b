"""Reading images from files: arrays of images, and trees of class folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from shiftcal._checks import wrong

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
else:  # what is checked at run time has no parameters
    Array = np.ndarray

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff")


@dataclass(frozen=True)
class Tree:
    """The images below class folders, `<root>/<class>/…/<file>`, in order of class and name."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    targets: tuple[int, ...]


def find_images(root: Path, classes: tuple[str, ...] | None = None) -> Tree:
    """List the images of a tree; with `classes`, folders of other names are left out and none may be missing.

    Images may lie deeper than their class folder, as Tiny-ImageNet's do in `<class>/images`.
    """
    if not root.is_dir():
        raise wrong("folder", "a folder with one folder of images for each class", str(root))
    found = tuple(sorted(path.name for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")))
    missing = sorted(set(classes or ()) - set(found))
    if missing:
        raise wrong(
            "folder", f"one with a folder for each of {len(classes or ())} classes", f"{root}, without {missing[0]}"
        )
    classes = classes or found
    files, targets = [], []
    for target, name in enumerate(classes):
        of_class = sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in EXTENSIONS and p.is_file())
        files += of_class
        targets += [target] * len(of_class)
    if not files:
        raise wrong("folder", "a folder with one folder of images for each class", f"{root}, without images")
    return Tree(root, classes, tuple(files), tuple(targets))


def read_image(path: Path, size: int | None = None) -> UInt8[Tensor, "3 height width"]:
    """Read one image as RGB; with `size`, resize and cut out the middle as ImageNet's benchmark does.

    The shorter side becomes 256/224 of the size, and the middle square is kept.
    """
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except (OSError, SyntaxError) as error:  # Pillow raises both for damaged files
        raise wrong("image", "readable", f"{path}: {error}") from None
    if size is not None:
        scale = round(size * 256 / 224) / min(image.size)
        width, height = (max(size, round(side * scale)) for side in image.size)
        left, top = (width - size) // 2, (height - size) // 2
        image = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def open_array(path: Path) -> Array:
    """Open an .npy file without reading it into memory; a damaged one, or one that would be unpickled, is an error."""
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise wrong("file", "a whole .npy file", f"{path}: {error}") from None
    return array


def open_images(path: Path) -> Array:
    """Open an .npy file of RGB images, uint8 [N, H, W, 3]."""
    array = open_array(path)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or 0 in array.shape:
        raise wrong("file", "uint8 images of shape [N, H, W, 3]", f"{path}: {array.dtype} {list(array.shape)}")
    return array


def to_tensor(images: Array) -> UInt8[Tensor, "n 3 height width"]:
    """Copy images [N, H, W, 3] into a tensor [N, 3, H, W]."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
