"""What every corruption must satisfy; how each compares with the benchmark's generators is in test_reference.py."""

import hashlib
import importlib
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from made_images import write_textures
from PIL import Image

from shiftcal import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from shiftcal.shifts.corruptions import CONSTANTS, SEVERITIES, _constants, frost_source
from shiftcal.shifts.corruptions.blur import _copied_from, _zoom_large, _zoom_operator, smear, zoom
from shiftcal.shifts.corruptions.random import Draws
from shiftcal.shifts.corruptions.setting import Setting
from shiftcal.shifts.corruptions.textures import textures

NAMES = [*CORRUPTIONS, *EXTRA_CORRUPTIONS]
RANDOM = {
    *("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "glass_blur", "motion_blur"),
    *("snow", "frost", "fog", "elastic_transform", "spatter"),
}
every_one = pytest.mark.parametrize("name", NAMES)


def test_the_names_are_the_benchmarks() -> None:
    assert (
        *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    ) == CORRUPTIONS
    assert EXTRA_CORRUPTIONS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    for constants in CONSTANTS:
        assert set(_constants()[constants]) == set(NAMES)
        assert all(len(values) == 5 for values in _constants()[constants].values())


def test_the_constants_are_the_benchmarks() -> None:
    cifar, imagenet = (_constants()[name] for name in ("cifar", "imagenet"))
    assert cifar["gaussian_noise"] == [0.04, 0.06, 0.08, 0.09, 0.1]
    assert cifar["motion_blur"] == [[6, 1], [6, 1.5], [6, 2], [8, 2], [9, 2.5]]
    assert imagenet["fog"] == [[1.5, 2], [2, 2], [2.5, 1.7], [2.5, 1.5], [3, 1.4]]
    assert imagenet["jpeg_compression"] == [25, 18, 15, 10, 7]
    # All of them, as they were checked against the published generators.
    digest = hashlib.sha256(json.dumps(_constants(), sort_keys=True).encode()).hexdigest()
    assert digest == "ad47e329fc86270a957a39caff33f458e6ba859af1f82705dabb0ad1781fe952"


@pytest.mark.parametrize("images", ["natural_images", "odd_images", "even_images"])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_agrees_with_pillow_at_any_size(images: str, severity: int, request: pytest.FixtureRequest) -> None:
    images = request.getfixturevalue(images)
    decoded = []
    for image in images.permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=_constants()["cifar"]["jpeg_compression"][severity - 1])
        decoded.append(np.asarray(Image.open(buffer).convert("RGB")))
    expected = torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).float()
    difference = (corrupt(images, "jpeg_compression", severity).float() - expected).abs()
    assert difference.mean() < 0.6
    assert difference[..., -1].mean() < 0.7, "the right edge does not see the padding"
    assert difference[..., -1, :].mean() < 0.7, "nor does the lower one"


@pytest.mark.parametrize(("name", "low", "high"), [("motion_blur", -45, 45), ("snow", -135, -45)])
def test_directions_are_drawn_evenly(
    name: str, low: float, high: float, natural_images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []

    def watched(x: torch.Tensor, radius: float, sigma: float, degrees: torch.Tensor) -> torch.Tensor:
        seen.append(degrees)
        return smear(x, radius, sigma, degrees)

    module = "shiftcal.shifts.corruptions.blur" if name == "motion_blur" else "shiftcal.shifts.corruptions.weather"
    monkeypatch.setattr(importlib.import_module(module), "smear", watched)
    corrupt(natural_images.repeat(20, 1, 1, 1), name, 3)
    degrees = torch.cat(seen).numpy()
    assert scipy.stats.kstest(degrees, scipy.stats.uniform(low, high - low).cdf).pvalue > 0.01


def test_channels_and_corruptions_have_noise_of_their_own() -> None:
    grey = torch.full((300, 3, 32, 32), 128, dtype=torch.uint8)
    fields = {
        n: corrupt(grey, n, 5).float() - 128 for n in ("gaussian_noise", "speckle_noise", "shot_noise", "impulse_noise")
    }
    planes = torch.stack([field[:, c].flatten() for field in fields.values() for c in range(3)])
    correlation = torch.corrcoef(planes) - torch.eye(len(planes))
    assert correlation.abs().max() < 0.01
    first, second = fields["gaussian_noise"][:2].flatten(1)
    assert torch.corrcoef(torch.stack([first, second]))[0, 1].abs() < 0.1


def test_snow_falls_from_both_sides() -> None:
    black = torch.zeros(40, 3, 32, 32, dtype=torch.uint8)
    whitened = corrupt(black, "snow", 3).float()
    assert torch.equal(whitened, whitened.flip(2, 3)), "the flakes and the flakes turned by 180° are added"
    assert not torch.equal(whitened, whitened.flip(2))


def test_frost_is_cut_from_anywhere_in_the_first_five(tmp_path: Path) -> None:
    for k in range(6):
        texture = np.zeros((300, 300, 3), dtype=np.uint8)
        texture[..., 0], texture[..., 1] = np.arange(300)[:, None] * 0.85, np.arange(300) * 0.85
        texture[..., 2] = 40 * k
        Image.fromarray(texture).save(tmp_path / f"{k}.png")
    black = torch.zeros(3000, 3, 16, 16, dtype=torch.uint8)
    drawn = corrupt(black, "frost", 5, constants="imagenet", frost=tmp_path)[:, :, 0, 0].float() / 0.75
    top, left = drawn[:, 0] / 0.85, drawn[:, 1] / 0.85
    assert torch.corrcoef(torch.stack([top, left]))[0, 1].abs() < 0.06
    for place in (top, left):
        assert scipy.stats.kstest(place.numpy(), scipy.stats.uniform(0, 284).cdf).statistic < 0.03
    shares = torch.bincount((drawn[:, 2] / 40).round().long(), minlength=6) / 3000
    torch.testing.assert_close(shares, torch.tensor([0.2] * 5 + [0.0]), atol=0.03, rtol=0)


def test_large_images_are_zoomed_as_small_ones_are(natural_images: torch.Tensor) -> None:
    x = natural_images[:4].float()
    for factor in (1.01, 1.13, 1.25, 2.25):
        torch.testing.assert_close(_zoom_large(x, factor), zoom(x, factor), atol=1e-3, rtol=0)


def test_severity_may_be_any_kind_of_integer(natural_images: torch.Tensor) -> None:
    assert torch.equal(corrupt(natural_images, "contrast", np.int64(3)), corrupt(natural_images, "contrast", 3))


def test_tables_do_not_pile_up() -> None:
    for width in range(16, 120):
        corrupt(torch.zeros(1, 3, 16, width, dtype=torch.uint8), "zoom_blur", 1)
        corrupt(torch.zeros(1, 3, 16, width, dtype=torch.uint8), "frost", 1)
    assert _zoom_operator.cache_info().currsize <= 64
    assert textures.cache_info().currsize <= 4


def test_black_turns_grey_and_flat_images_keep_their_level() -> None:
    black = torch.zeros(1, 3, 16, 16, dtype=torch.uint8)
    assert (corrupt(black, "brightness", 5) == 76).all()  # 0.3 · 255, truncated
    flat = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 16, 16).contiguous()
    for severity in SEVERITIES:
        assert torch.equal(corrupt(flat, "contrast", severity), flat)


def test_noise_has_its_strength() -> None:
    grey = torch.full((200, 3, 32, 32), 128, dtype=torch.uint8)
    for severity in SEVERITIES:
        sigma = _constants()["cifar"]["gaussian_noise"][severity - 1]
        noisy = corrupt(grey, "gaussian_noise", severity).float()
        assert noisy.std().item() == pytest.approx(255 * sigma, rel=0.01)
        assert noisy.mean().item() == pytest.approx(127.5, abs=0.1)  # the generators truncate


def test_random_numbers_are_normal_and_independent() -> None:
    draws = Draws(0, torch.arange(500))
    z = draws.normal(0, 3, 16, 16)
    assert z.mean().abs() < 0.01
    assert z.std().item() == pytest.approx(1, abs=0.01)
    assert z.pow(4).mean().item() == pytest.approx(3, abs=0.05)
    for product in (z[1:] * z[:-1], z[..., 1:] * z[..., :-1], z * draws.normal(1, 3, 16, 16)):
        assert product.mean().abs() < 5 / math.sqrt(product.numel())
    u = Draws(7, torch.arange(500)).uniform(0, 100)
    assert u.min() > 0
    assert u.max() < 1
    assert torch.histc(u, 10, 0, 1).div(len(u.flatten())).sub(0.1).abs().max() < 0.01
    one = torch.tensor([1])
    assert not torch.equal(Draws(1, one - 1).uniform(0, 8), Draws(0, one).uniform(0, 8))


def test_random_numbers_stay_within_their_bounds() -> None:
    draws = Draws(3, torch.arange(1000))
    assert sorted(set(draws.integers(0, -2, 2, 40).flatten().tolist())) == [-2, -1, 0, 1]
    between = draws.between(1, -45.0, 45.0, 100)
    assert between.min() > -45
    assert between.max() < 45
    assert between.mean().abs() < 0.5


def test_random_numbers_stay_what_they_are() -> None:
    # Results that were published with a seed must be found again.
    drawn = Draws(1, torch.tensor([2])).bits(3, 4)[0].tolist()
    assert drawn == [-1854138947, 562383120, 1792503786, -255144690]
    far = Draws(2**32 - 1, torch.tensor([2**40])).uniform(0, 2)
    assert far.shape == (1, 2)


@every_one
def test_an_image_does_not_depend_on_its_batch(name: str, natural_images: torch.Tensor) -> None:
    images = natural_images[:12]
    together = corrupt(images, name, 3, seed=5)
    parts = [
        corrupt(images[i : i + n], name, 3, seed=5, indices=torch.arange(i, i + n)) for i, n in ((0, 1), (1, 4), (5, 7))
    ]
    assert torch.equal(torch.cat(parts), together)
    assert torch.equal(corrupt(images, name, 3, seed=5), together)


def test_single_images_are_zoomed_as_many_are() -> None:
    """Products of few rows are rounded otherwise, by which one value in 20,000 would be another."""
    images = torch.randint(0, 256, (300, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for n in (1, 2):
        parts = [corrupt(part, "zoom_blur", 1) for part in images.split(n)]
        assert torch.equal(torch.cat(parts), corrupt(images, "zoom_blur", 1))


def test_images_and_indices_may_be_arrays(natural_images: torch.Tensor) -> None:
    expected = corrupt(natural_images[5:9], "shot_noise", 2, indices=torch.arange(5, 9))
    for indices in (np.arange(5, 9), [5, 6, 7, 8]):
        assert torch.equal(corrupt(natural_images[5:9].numpy(), "shot_noise", 2, indices=indices), expected)


@every_one
def test_autocast_changes_nothing(name: str, natural_images: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = corrupt(natural_images, name, 4)
    assert torch.equal(inside, corrupt(natural_images, name, 4))


@every_one
def test_the_seed_and_the_index_matter_for_random_ones_only(name: str, natural_images: torch.Tensor) -> None:
    same = natural_images[:1].repeat(2, 1, 1, 1)
    first, other_seed = corrupt(same, name, 3, seed=1), corrupt(same, name, 3, seed=2)
    assert torch.equal(first[0], first[1]) == (name not in RANDOM)
    assert torch.equal(first, other_seed) == (name not in RANDOM)


# Where the benchmark's own constants make a stronger severity milder.
NOT_MONOTONE = {
    *((constants, name) for constants in CONSTANTS for name in ("frost", "saturate", "spatter", "glass_blur")),
    *((constants, "elastic_transform") for constants in CONSTANTS),
}


@every_one
@pytest.mark.parametrize("constants", CONSTANTS)
def test_severity_grows_and_inputs_stay(name: str, constants: str, natural_images: torch.Tensor) -> None:
    before = natural_images.clone()
    outputs = [corrupt(natural_images, name, severity, constants=constants) for severity in SEVERITIES]
    errors = [float((o.float() - natural_images.float()).square().mean()) for o in outputs]
    if (constants, name) not in NOT_MONOTONE:
        assert errors == sorted(errors)
    assert min(errors) > 0
    assert all(o.dtype == torch.uint8 and o.shape == natural_images.shape for o in outputs)
    assert torch.equal(natural_images, before)


@every_one
@pytest.mark.parametrize("constants", CONSTANTS)
@pytest.mark.parametrize("size", [(16, 16), (33, 50), (64, 17), (128, 96)])
def test_flat_images_and_odd_sizes(name: str, constants: str, size: tuple[int, int]) -> None:
    for level in (0, 90, 255):
        images = torch.full((2, 3, *size), level, dtype=torch.uint8)
        for severity in SEVERITIES:
            result = corrupt(images, name, severity, constants=constants)
            assert (result.shape, result.dtype) == (images.shape, torch.uint8)
    assert corrupt(torch.zeros(0, 3, *size, dtype=torch.uint8), name, 5).shape == (0, 3, *size)


@every_one
def test_large_images(name: str) -> None:
    images = torch.arange(512).add(torch.arange(400)[:, None]).div(4).to(torch.uint8).expand(1, 3, -1, -1)
    assert corrupt(images, name, 5, constants="imagenet").shape == images.shape


@every_one
def test_views_are_taken_for_what_they_show(name: str, natural_images: torch.Tensor) -> None:
    view = natural_images[:4].flip(3).transpose(2, 3)
    assert torch.equal(corrupt(view, name, 4), corrupt(view.contiguous(), name, 4))


def test_contrast_and_brightness_of_one_colour_are_exact() -> None:
    colour = torch.tensor([200, 100, 50], dtype=torch.uint8)[None, :, None, None].expand(1, 3, 16, 16)
    assert torch.equal(corrupt(colour, "contrast", 5), colour)
    # V = 200/255 + 0.1, the other channels in proportion.
    expected = [225, 112, 56]
    assert corrupt(colour, "brightness", 2)[0, :, 0, 0].tolist() == expected


@pytest.mark.parametrize("level", [0, 3, 60, 128, 255])
@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("constants", CONSTANTS)
def test_shot_noise_has_the_poisson_distribution(level: int, severity: int, constants: str) -> None:
    rate = _constants()[constants]["shot_noise"][severity - 1]
    images = torch.full((300, 3, 32, 32), level, dtype=torch.uint8)
    drawn = np.bincount(corrupt(images, "shot_noise", severity, constants=constants).flatten(), minlength=256)
    counts = np.arange(2000)
    grey = (np.minimum(counts / rate, 1) * 255 + 1e-6).astype(int)
    expected = np.bincount(grey, scipy.stats.poisson.pmf(counts, rate * level / 255), minlength=256)
    # Total variation; 921,600 draws leave about √(2 · cells / (π · draws)).
    assert np.abs(drawn / drawn.sum() - expected).sum() / 2 < 0.012


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_chains_of_copies_are_those_of_a_scan(reach: int) -> None:
    """Glass blur's copies, resolved all at once, against visiting pixel after pixel."""
    setting, height, width = Setting(Draws(0, torch.arange(6)), "imagenet"), 23, 31
    source = _copied_from(setting, 10, height, width, reach)
    offset = setting.draws.integers(10, -reach, reach, 2, height * width).view(6, 2, height, width)
    for image in range(6):
        values = np.arange(height * width).reshape(height, width)
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = offset[image, :, row, column].tolist()
                values[row, column] = values[row + down, column + right]
        assert source[image].tolist() == values.flatten().tolist()


def test_frost_comes_from_the_users_folder(tmp_path: Path, natural_images: torch.Tensor) -> None:
    for name, level in (("dark", 0), ("light", 255)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (300, 250), (level,) * 3).save(tmp_path / name / "texture.PNG")
    clean = natural_images.float()
    dark, light = (corrupt(natural_images, "frost", 3, frost=tmp_path / name).float() for name in ("dark", "light"))
    torch.testing.assert_close(dark, (0.9 * clean).floor(), atol=1.0, rtol=0)
    torch.testing.assert_close(light, (0.9 * clean + 0.4 * 255).clamp(max=255).floor(), atol=1.0, rtol=0)
    assert frost_source(tmp_path / "dark") == str(tmp_path / "dark")
    write_textures(tmp_path / "small", size=(20, 24))
    assert corrupt(natural_images, "frost", 3, frost=str(tmp_path / "small")).shape == natural_images.shape


def test_bad_frost(tmp_path: Path, natural_images: torch.Tensor) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        message = f"`frost` should be a folder with images .* Found `frost = '{re.escape(str(folder))}'`"
        with pytest.raises(ValueError, match=message):
            corrupt(natural_images, "frost", 1, frost=folder)
    (tmp_path / "broken.png").write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"`frost` should be readable images. .*broken.png"):
        corrupt(natural_images, "frost", 1, frost=tmp_path)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "gausian_noise"}, "`name` should be one of .* Did you mean 'gaussian_noise'?"),
        ({"severity": 2.0}, "`severity` should be an integer in 1..5. Found `severity = 2.0`"),
        ({"seed": 2**40}, "`seed` should be an integer in 0..2³²−1"),
        ({"seed": 1.5}, "`seed` should be an integer in 0..2³²−1"),
        ({"severity": True}, "`severity` should be an integer in 1..5. Found `severity = True`"),
        ({"severity": 0}, "`severity` should be an integer in 1..5. Found `severity = 0`"),
        ({"severity": 6}, "Found `severity = 6`"),
        ({"constants": "cifar10"}, "`constants` should be one of .* Did you mean 'cifar'?"),
        ({"images": torch.zeros(1, 3, 32, 32)}, "`images` should be uint8"),
        ({"images": torch.zeros(1, 1, 32, 32, dtype=torch.uint8)}, "`images` should be of shape"),
        (
            {"images": torch.zeros(1, 3, 15, 32, dtype=torch.uint8)},
            r"`images` should be at least 16×16. Found `images = \[1, 3, 15, 32\]`",
        ),
        ({"indices": torch.arange(2)}, "`indices` should be 1 integers"),
    ],
)
def test_bad_input(arguments: dict[str, object], message: str) -> None:
    good = {"images": torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "name": "contrast", "severity": 1}
    with pytest.raises(ValueError, match=message):
        corrupt(**(good | arguments))
