"""Every corruption against the benchmark's generators, rebuilt image by image from other libraries (reference.py)."""

import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from shiftcal import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from shiftcal.shifts.corruptions import SEVERITIES, _constants
from shiftcal.shifts.corruptions.blur import smear

sys.path.insert(0, str(Path(__file__).parent))
import reference
from made_images import make_natural_images, write_textures
from test_corruptions import RANDOM

SIDES = {"cifar": 32, "tiny-imagenet": 64, "imagenet": 224}
DETERMINISTIC = [name for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS) if name not in RANDOM]
needs_magick = pytest.mark.skipif(reference.WandImage is None, reason="needs ImageMagick (apt install imagemagick)")

# All five, two of them among the slow tests.
EACH = [pytest.param(s, marks=pytest.mark.slow) if s in (2, 4) else s for s in SEVERITIES]


def of(names: object) -> list[object]:
    return [pytest.param(n, marks=needs_magick if n in ("motion_blur", "snow") else ()) for n in sorted(names)]


def by_reference(images: torch.Tensor, name: str, severity: int, constants: str, **options: object) -> torch.Tensor:
    rng, amount = np.random.default_rng(severity), _constants()[constants][name][severity - 1]
    function = partial(getattr(reference, name), **options)
    made = [function(np.ascontiguousarray(array), amount, rng) for array in images.permute(0, 2, 3, 1).numpy()]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


@pytest.mark.parametrize(("constants", "count"), [("cifar", 200), ("tiny-imagenet", 40), ("imagenet", 6)])
@pytest.mark.parametrize("severity", EACH)
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_ones_agree_pixel_by_pixel(name: str, severity: int, constants: str, count: int) -> None:
    images = make_natural_images(count, SIDES[constants], SIDES[constants])
    ours = corrupt(images, name, severity, constants=constants).float()
    difference = (ours - by_reference(images, name, severity, constants).float()).abs()
    # JPEG differs by the codec's integer DCT. Elsewhere float64 may fall a hair below a whole level and lose it.
    assert difference.mean() <= (0.8 if name == "jpeg_compression" else 0.25)


def statistics(images: torch.Tensor, clean: torch.Tensor) -> tuple[float, list[float], float]:
    """Mean RMSE to the clean image, mean shift of brightness in each channel, energy of the gradient."""
    x, difference = images.float(), images.float() - clean.float()
    energy = x.diff(dim=2).square().mean() + x.diff(dim=3).square().mean()
    rmse = difference.square().mean((1, 2, 3)).sqrt().mean()
    return rmse.item(), difference.mean((0, 2, 3)).tolist(), energy.item()


def compare(images: torch.Tensor, ours: torch.Tensor, theirs: torch.Tensor, *, slack: float = 1.0) -> None:
    rmse, bright, energy = statistics(ours, images)
    expected_rmse, expected_bright, expected_energy = statistics(theirs, images)
    assert rmse == pytest.approx(expected_rmse, rel=0.05 * slack)
    assert bright == pytest.approx(expected_bright, abs=1.5 * slack)
    assert energy == pytest.approx(expected_energy, rel=0.07 * slack)


@pytest.mark.parametrize("severity", EACH)
@pytest.mark.parametrize("name", of(RANDOM - {"frost"}))
def test_random_ones_have_the_same_strength(name: str, severity: int) -> None:
    images = make_natural_images(1000, 32, 32)
    compare(images, corrupt(images, name, severity), by_reference(images, name, severity, "cifar"))


@pytest.mark.slow
@pytest.mark.parametrize("severity", EACH)
@pytest.mark.parametrize("name", of(RANDOM - {"frost"}))
def test_random_ones_have_the_same_strength_at_64(name: str, severity: int) -> None:
    images = make_natural_images(300, 64, 64)
    ours = corrupt(images, name, severity, constants="tiny-imagenet")
    compare(images, ours, by_reference(images, name, severity, "tiny-imagenet"), slack=1.5)


@pytest.mark.parametrize(("constants", "scale"), [("cifar", 0.2), ("tiny-imagenet", 0.3)])
@pytest.mark.parametrize("severity", EACH)
def test_frost_has_the_same_strength(severity: int, constants: str, scale: float, tmp_path: Path) -> None:
    write_textures(tmp_path, size=(700, 500))
    images = make_natural_images(1000, SIDES[constants], SIDES[constants])
    theirs = by_reference(
        images, "frost", severity, constants, folder=tmp_path, scale=scale, read=cache(reference.read_texture)
    )
    compare(images, corrupt(images, "frost", severity, constants=constants, frost=tmp_path), theirs)


@pytest.mark.parametrize("severity", [pytest.param(1, marks=pytest.mark.slow), 2, 5])
def test_elastic_transform_has_the_strength_of_the_generator_for_large_images(severity: int) -> None:
    # That one counts in units of 244 where images have 224 pixels.
    images = make_natural_images(60, 224, 224)
    amount = [244 / 224 * value for value in _constants()["imagenet"]["elastic_transform"][severity - 1]]
    rng = np.random.default_rng(0)
    made = [reference.elastic_transform(array, amount, rng) for array in images.permute(0, 2, 3, 1).numpy()]
    theirs = torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)
    ours = corrupt(images, "elastic_transform", severity, constants="imagenet")
    compare(images, ours, theirs, slack=2.0)


@needs_magick
@pytest.mark.parametrize(("radius", "sigma"), [(6, 1), (9, 2.5), (20, 15), (14, 12)])
def test_motion_blur_is_imagemagicks(radius: float, sigma: float) -> None:
    images = make_natural_images(60, 32, 40)
    degrees = torch.cat([torch.linspace(-135, 45, 56), torch.tensor([-90.0, -45.0, 0.0, 45.0])])
    ours = smear(images, radius, sigma, degrees).permute(0, 2, 3, 1).numpy()
    arrays = images.permute(0, 2, 3, 1).numpy()
    theirs = [
        reference.magick_motion(np.ascontiguousarray(array), radius, sigma, angle)
        for array, angle in zip(arrays, degrees.tolist(), strict=True)
    ]
    assert np.abs(ours.astype(float) - np.stack(theirs)).mean() < 0.05


def test_the_drawn_frost_is_about_as_strong_as_photographs() -> None:
    # Of the benchmark's photographs; measured, since they are not ours to distribute.
    images = make_natural_images(1000, 32, 32)
    for severity, expected, gradient in ((1, 32.6, 476), (3, 54.2, 461), (5, 47.6, 397)):
        made = corrupt(images, "frost", severity, frost="drawn")
        assert statistics(made, images)[0] == pytest.approx(expected, rel=0.06)
        assert made.float().diff(dim=3).square().mean().item() == pytest.approx(gradient, rel=0.13)
