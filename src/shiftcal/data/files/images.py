"""Reading images from files, and arrays of images."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from shiftcal._errors import DataError, ImageError, check_count, reason_of, unknown, wrong
from shiftcal._progress import Progress
from shiftcal.data.files.unreadable import check_unreadable, name_unreadable

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
else:  # what is checked at run time has no parameters
    Array = np.ndarray

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF")  # by content: a file's name decides nothing
_THINNEST = 100  # sides of an image that is made square may differ by this factor
_TWELVE_BITS = 4096
_BAND = 2  # of a longer image only the middle counts


Interpolation = Literal["bilinear", "bicubic", "nearest", "lanczos"]
_INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos")


@dataclass(frozen=True)
class Crop:
    """Make the shorter side `resize` pixels and cut out the middle, as torchvision's Resize and CenterCrop do.

    For models that were evaluated so, and not with the 256/224 of "crop".
    """

    resize: int
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        check_count("resize", self.resize)
        if self.interpolation not in _INTERPOLATIONS:
            raise unknown("interpolation", self.interpolation, _INTERPOLATIONS)


Fit = Literal["crop", "stretch"] | Crop


def check_fit(size: int | None, fit: Fit) -> None:
    """Raise unless images can be made square in this way."""
    if isinstance(fit, Crop):
        if size is None:
            raise wrong("size", f"given with fit = {fit}", None)
        if fit.resize < size:
            raise wrong("fit", f"one that resizes to at least the size, {size}", fit)
    elif fit not in ("crop", "stretch"):
        raise wrong("fit", "'crop', 'stretch' or a `Crop`", repr(fit))


def read_image(path: Path, size: int | None = None, fit: Fit = "crop") -> UInt8[Tensor, "3 height width"]:
    """Read one image as 8-bit RGB: of an animation the first frame, of 16 bits the high ones, without transparency.

    With `size` it becomes a square: "crop" makes the shorter side 256/224 of the size and cuts out the middle, as
    ImageNet's evaluation does, but leaves an image alone that has this size already; "stretch" resizes both sides; a
    `Crop` tells how to resize before the middle is cut out.
    """
    check_fit(size, fit)
    with _opened(path) as file:
        if size is not None and max(file.size) > _THINNEST * min(file.size):
            width, height = file.size
            raise ImageError(path, f"its {width} × {height} pixels are too thin to become square")
        image = _to_rgb(file)
    if size is not None:
        image = _resized(image, size, fit)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def fit_image(image: UInt8[Tensor, "3 height width"], size: int, fit: Fit = "crop") -> UInt8[Tensor, "3 size size"]:
    """Make an image in memory a square, as `read_image` makes one from a file."""
    from PIL import Image

    check_fit(size, fit)
    square = _resized(Image.fromarray(image.permute(1, 2, 0).numpy()), size, fit)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def image_size(path: Path) -> tuple[int, int]:
    """Read an image's height and width from its header."""
    with _opened(path) as file:
        width, height = file.size
    return height, width


def first_size(files: Sequence[Path]) -> tuple[int, int]:
    """Read the height and width of the first image whose header can be read."""
    for file in files:
        with suppress(ImageError):
            return image_size(file)
    return image_size(files[0])  # which tells what is wrong


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=FORMATS) as file:
            yield file
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(path, f"no whole image of the formats {', '.join(FORMATS)}") from None
    except (OSError, SyntaxError, ValueError, MemoryError, Image.DecompressionBombError) as error:  # of damage
        raise ImageError(path, str(error) or type(error).__name__) from None


def _to_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith(("I", "F")):  # 16 or 32 bits, which Pillow would cut off at 255
        values = np.asarray(image, dtype=np.float64)
        unit = image.mode == "F" and values.max() <= 1  # brightness in 0..1
        scale = 257 if values.max() > 255 else 1 / 255 if unit else 1
        if 255 < values.max() < _TWELVE_BITS:
            warnings.warn(
                f"Images of 16 bits that are nearly black, all below {_TWELVE_BITS} of 65535: multiply images of 12 "
                "bits by 16 before.",
                stacklevel=2,
            )
        return Image.fromarray((values / scale).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("P", "LA", "PA"):  # a palette may carry transparency
        return image.convert("RGBA").convert("RGB")
    return image.convert("RGB")


def _resized(image: Any, size: int, fit: Fit) -> Any:
    from PIL import Image

    if isinstance(fit, Crop):
        return _cropped(image, size, fit.resize, Image.Resampling[fit.interpolation.upper()])
    if fit == "stretch":
        return image.resize((size, size), Image.Resampling.BILINEAR)
    if image.size == (size, size):  # somebody cut it before: enlarged, its border would be lost
        return image
    return _cropped(_middle(image), size, round(size * 256 / 224), Image.Resampling.BILINEAR)


def _cropped(image: Any, size: int, shorter: int, interpolation: Any) -> Any:
    """Resize so that the shorter side has `shorter` pixels, and cut out the middle, with torchvision's rounding."""
    width, height = (shorter * side // min(image.size) for side in image.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.resize((width, height), interpolation).crop((left, top, left + size, top + size))


def _middle(image: Any) -> Any:
    """Cut a long image down to its middle: resized whole, it would take memory for what is cut away."""
    shorter = min(image.size)
    if max(image.size) <= 2 * _BAND * shorter:
        return image
    box = [(side - min(side, _BAND * shorter)) // 2 for side in image.size]
    return image.crop((*box, *(side - start for side, start in zip(image.size, box, strict=True))))


def read_images(
    files: Sequence[Path], *, size: int | None = None, fit: Fit = "crop", title: str = "read", progress: bool = True
) -> tuple[UInt8[Tensor, "n 3 height width"], Bool[Tensor, " files"]]:
    """Read files on all cores into one tensor, and tell which could be read.

    Unreadable files are left out and named if they are fewer than one in a hundred; more are an error that lists all,
    and so are images of different sizes where no size is given to bring them to.
    """
    readable = torch.ones(len(files), dtype=torch.bool)
    images: Tensor | None = None
    failures: list[str] = []
    with ThreadPoolExecutor() as pool, Progress(title, len(files), enabled=progress) as bar:
        for place, (path, image) in enumerate(zip(files, pool.map(partial(try_image, size, fit), files), strict=True)):
            bar.advance()
            if isinstance(image, str):
                failures.append(image)
                readable[place] = False
                continue
            if images is None:
                images = torch.empty(len(files), *image.shape, dtype=torch.uint8)
            if image.shape != images.shape[1:]:
                expected = f"of one size, {list(images.shape[1:])} (--size, or a recipe's data.size, makes them one)"
                raise DataError("images", expected, f"{path}: {list(image.shape)}")
            images[place] = image
    check_unreadable(failures, len(files))
    if images is None:
        raise DataError("images", "at least one", "none")
    for number, failure in enumerate(failures, start=1):
        name_unreadable(failure, number, len(files))
    return images[readable], readable


def unreadable_among(files: Sequence[Path], size: int | None, fit: Fit) -> list[str]:
    """Read all files on all cores, and tell what is wrong with those that cannot be read."""
    with ThreadPoolExecutor() as pool:
        return [image for image in pool.map(partial(try_image, size, fit), files) if isinstance(image, str)]


def try_image(size: int | None, fit: Fit, path: Path) -> Tensor | str:
    """Read an image as `read_image` does, or return what is wrong with it."""
    try:
        return read_image(path, size, fit)
    except ImageError as error:
        return error.in_words()


def open_array(path: Path) -> Array:
    """Open an .npy file without reading it into memory; a damaged one, or one that would be unpickled, is an error."""
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a forged header raises many kinds
        raise DataError("file", "a whole .npy file", f"{path}: {reason_of(error)}") from None
    return array


def open_images(path: Path) -> Array:
    """Open an .npy file of RGB images, uint8 [N, H, W, 3]."""
    array = open_array(path)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or 0 in array.shape:
        raise DataError("file", "uint8 images of shape [N, H, W, 3]", f"{path}: {array.dtype} {list(array.shape)}")
    return array


def to_tensor(images: Array) -> UInt8[Tensor, "n 3 height width"]:
    """Copy images [N, H, W, 3] into a tensor [N, 3, H, W]."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
