"""Photographs of frost: the user's, those that come with `imagecorruptions`, or a drawing of our own."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.shifts.corruptions.blur import smooth

_EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
# The benchmark shrinks the photographs for small images.
_SCALE = {"cifar": 0.2, "tiny-imagenet": 0.3, "imagenet": 1.0}
_PACKAGE, _DRAWN = "imagecorruptions", "drawn"


def frost_source(frost: str | Path | None = None) -> str:
    """Tell where frost comes from: the folder named, else "imagecorruptions" where that is installed, else "drawn".

    Example:
        >>> frost_source() in ("imagecorruptions", "drawn")
        True
    """
    if frost is not None:
        return str(frost)
    return _PACKAGE if _package_folder() is not None else _DRAWN


def check_frost(frost: str | None) -> None:
    """Raise unless there are images of frost where they should be."""
    _load(frost)


def _package_folder() -> Path | None:
    """Find the photographs without importing the package, whose release no longer imports."""
    spec = importlib.util.find_spec(_PACKAGE)
    folder = Path(spec.origin).parent / "frost" if spec and spec.origin else None
    return folder if folder is not None and folder.is_dir() else None


@lru_cache(maxsize=4)
def textures(
    frost: str | None, constants: str, height: int, width: int, device: torch.device
) -> tuple[Float[Tensor, "3 pixels"], Int[Tensor, " n"], Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Return all textures one after the other as pixels, and each one's start, height and width.

    They are shrunk as the benchmark does, and enlarged where an image would not fit into one.
    """
    fitted = [_fit(image, _SCALE[constants], height, width) for image in _load(frost)]
    sizes = torch.tensor([image.shape[1:] for image in fitted])
    start = sizes.prod(1).cumsum(0) - sizes.prod(1)
    pixels = torch.cat([image.flatten(1) for image in fitted], dim=1)
    return pixels.to(device), start.to(device), sizes[:, 0].to(device), sizes[:, 1].to(device)


def _fit(image: Float[Tensor, "3 h w"], scale: float, height: int, width: int) -> Float[Tensor, "3 h2 w2"]:
    # One pixel more than the image, since the place of the crop is drawn below the difference.
    scale = max(scale, (height + 1) / image.shape[1], (width + 1) / image.shape[2])
    if scale == 1:
        return image
    size = [max(round(image.shape[1] * scale), height + 1), max(round(image.shape[2] * scale), width + 1)]
    resized: Tensor = torch.nn.functional.interpolate(image[None], size=size, mode="bilinear")[0]
    return resized.round()


@lru_cache(maxsize=4)
def _load(frost: str | None) -> tuple[Float[Tensor, "3 h w"], ...]:
    """Read the first five photographs of a folder by name; the benchmark leaves its sixth out."""
    folder = _package_folder() if frost is None else Path(frost)
    if folder is None or frost == _DRAWN:
        return tuple(_draw(number) for number in range(len(_TONES)))
    files = sorted(p for p in folder.iterdir() if p.suffix.lower() in _EXTENSIONS) if folder.is_dir() else []
    if not files:
        raise wrong("frost", f"a folder with images ({', '.join(_EXTENSIONS)})", repr(str(folder)))
    return tuple(_read(path) for path in files[:5])


def _read(path: Path) -> Float[Tensor, "3 h w"]:
    from PIL import Image

    try:
        with Image.open(path, formats=("PNG", "JPEG", "BMP", "WEBP")) as image:
            array = np.array(image.convert("RGB"), dtype=np.float32)
    except OSError as error:
        raise wrong("frost", "readable images", f"{path}: {error}") from None
    return torch.from_numpy(array).permute(2, 0, 1)


# Mean colour and spread of the tones of the benchmark's five photographs, of which two are alike.
_TONES = (
    ((78, 149, 166), 18),
    ((201, 205, 214), 22),
    ((201, 205, 214), 22),
    ((138, 153, 165), 28),
    ((112, 123, 135), 43),
)


def _draw(number: int, height: int = 480, width: int = 720) -> Float[Tensor, "3 h w"]:
    """Draw crystals: ridges of noise at six scales, in the tones of one of the benchmark's photographs."""
    generator = torch.Generator().manual_seed(number)
    total = torch.zeros(height, width)
    for octave in range(6):
        noise = smooth(torch.randn(height, width, generator=generator), 32.0 / 2**octave, edge="reflect")
        total += 0.9**octave * (1 - (noise / noise.std()).abs()).clamp(min=-1)
    colour, spread = _TONES[number]
    crystals = spread * (total - total.mean()) / total.std()
    return (torch.tensor(colour)[:, None, None] + crystals).clamp(0, 255).round()
