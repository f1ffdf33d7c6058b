import colorsys
import io
import math

import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import Image

from shiftcal import corrupt
from shiftcal.corruptions import IMPLEMENTED, SEVERITIES, _constants
from shiftcal.corruptions.random import normal, uniform

NAMES = list(IMPLEMENTED)
every_one = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("images", ["natural_images", "odd_images", "even_images"])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_agrees_with_pillow_at_default_subsampling(
    images: str, severity: int, request: pytest.FixtureRequest
) -> None:
    images = request.getfixturevalue(images)
    quality = _constants()["cifar"]["jpeg_compression"][severity - 1]
    decoded = []
    for image in images.permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=quality)
        decoded.append(np.asarray(Image.open(buffer).convert("RGB")))
    expected = torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).float()
    difference = (corrupt(images, "jpeg_compression", severity).float() - expected).abs()
    assert difference.mean() < 0.6
    assert difference[..., -1].mean() < 0.7, "the right edge does not see the padding"
    assert difference[..., -1, :].mean() < 0.7, "nor does the lower one"


@pytest.mark.parametrize("severity", SEVERITIES)
def test_blur_agrees_with_scipy(severity: int, natural_images: torch.Tensor) -> None:
    sigma = _constants()["cifar"]["gaussian_blur"][severity - 1]
    x = natural_images.numpy() / 255
    expected = scipy.ndimage.gaussian_filter(x, (0, 0, sigma, sigma), mode="nearest", truncate=4.0)
    ours = corrupt(natural_images, "gaussian_blur", severity).numpy().astype(float)
    assert np.abs(ours - (expected * 255).astype(np.uint8)).mean() < 0.02


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_agrees_with_hsv_arithmetic(severity: int, natural_images: torch.Tensor) -> None:
    amount = _constants()["cifar"]["brightness"][severity - 1]
    image = natural_images[:1].clone()
    image[0, :, 0, 0] = 0  # black has no hue
    image[0, :, 0, 1] = 255
    pixels = image[0].flatten(1).T.numpy() / 255
    expected = []
    for r, g, b in pixels:
        h, s, v = colorsys.rgb_to_hsv(r, g, b)
        expected.append(colorsys.hsv_to_rgb(h, s, min(1.0, v + amount)))
    ours = corrupt(image, "brightness", severity)[0].flatten(1).T.numpy().astype(float)
    # Whole levels may come out of float64 a hair below, and truncation then takes one off.
    assert np.abs(ours - (np.array(expected) * 255).astype(np.uint8)).mean() < 0.1


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_is_its_formula(severity: int, natural_images: torch.Tensor) -> None:
    factor = _constants()["cifar"]["contrast"][severity - 1]
    x = natural_images.double().numpy() / 255
    mean = x.mean((2, 3), keepdims=True)
    expected = (np.clip((x - mean) * factor + mean, 0, 1) * 255).astype(np.uint8).astype(float)
    assert np.abs(corrupt(natural_images, "contrast", severity).numpy() - expected).mean() < 0.02


def test_constants_are_the_benchmarks_for_small_images() -> None:
    assert _constants()["cifar"] == {
        "gaussian_noise": [0.04, 0.06, 0.08, 0.09, 0.1],
        "gaussian_blur": [0.4, 0.6, 0.7, 0.8, 1.0],
        "contrast": [0.75, 0.5, 0.4, 0.3, 0.15],
        "brightness": [0.05, 0.1, 0.15, 0.2, 0.3],
        "jpeg_compression": [80, 65, 58, 50, 40],
    }


def test_black_turns_grey_and_flat_images_keep_their_level() -> None:
    black = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    assert (corrupt(black, "brightness", 5) == 76).all()  # 0.3 · 255, truncated
    flat = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8).contiguous()
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
    z = normal(0, 0, torch.arange(500), (3, 16, 16))
    assert z.mean().abs() < 0.01
    assert z.std().item() == pytest.approx(1, abs=0.01)
    assert z.pow(4).mean().item() == pytest.approx(3, abs=0.05)
    for product in (z[1:] * z[:-1], z[..., 1:] * z[..., :-1], z * normal(0, 1, torch.arange(500), (3, 16, 16))):
        assert product.mean().abs() < 5 / math.sqrt(product.numel())
    u = uniform(7, 0, torch.arange(500), (100,))
    assert u.min() > 0
    assert u.max() < 1
    assert not torch.equal(uniform(1, 0, torch.tensor([0]), (8,)), uniform(0, 0, torch.tensor([1]), (8,)))
    assert torch.histc(u, 10, 0, 1).div(len(u.flatten())).sub(0.1).abs().max() < 0.01


@every_one
def test_an_image_does_not_depend_on_its_batch(name: str, natural_images: torch.Tensor) -> None:
    images = natural_images[:12]
    together = corrupt(images, name, 3, seed=5)
    parts = [
        corrupt(images[i : i + n], name, 3, seed=5, indices=torch.arange(i, i + n)) for i, n in ((0, 1), (1, 4), (5, 7))
    ]
    assert torch.equal(torch.cat(parts), together)
    assert torch.equal(corrupt(images, name, 3, seed=5), together)


@every_one
def test_autocast_changes_nothing(name: str, natural_images: torch.Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = corrupt(natural_images, name, 4)
    assert torch.equal(inside, corrupt(natural_images, name, 4))


def test_the_seed_and_the_index_matter(natural_images: torch.Tensor) -> None:
    same = natural_images[:1].repeat(2, 1, 1, 1)
    noisy = corrupt(same, "gaussian_noise", 3, seed=1)
    assert not torch.equal(noisy[0], noisy[1])
    assert not torch.equal(noisy, corrupt(same, "gaussian_noise", 3, seed=2))


@every_one
@pytest.mark.parametrize("constants", ["cifar", "tiny-imagenet", "imagenet"])
def test_severity_grows_and_inputs_stay(name: str, constants: str, natural_images: torch.Tensor) -> None:
    before = natural_images.clone()
    outputs = [corrupt(natural_images, name, severity, constants=constants) for severity in SEVERITIES]
    errors = [float((o.float() - natural_images.float()).square().mean()) for o in outputs]
    assert errors == sorted(errors)
    assert all(o.dtype == torch.uint8 and o.shape == natural_images.shape for o in outputs)
    assert torch.equal(natural_images, before)


@every_one
@pytest.mark.parametrize("size", [(16, 16), (33, 50), (1, 3)])
def test_flat_images_and_odd_sizes(name: str, size: tuple[int, int]) -> None:
    for level in (0, 90, 255):
        images = torch.full((2, 3, *size), level, dtype=torch.uint8)
        assert corrupt(images, name, 5).shape == images.shape
    assert corrupt(torch.zeros(0, 3, *size, dtype=torch.uint8), name, 5).shape == (0, 3, *size)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "gausian_noise"}, "`name` should be one of .* Did you mean 'gaussian_noise'?"),
        ({"severity": 2.0}, "`severity` should be an integer in 1..5. Found `severity = 2.0`"),
        ({"seed": 2**40}, "`seed` should be an integer in 0..2³²−1"),
        ({"seed": 1.5}, "`seed` should be an integer in 0..2³²−1"),
        ({"severity": 0}, "`severity` should be an integer in 1..5. Found `severity = 0`"),
        ({"severity": 6}, "Found `severity = 6`"),
        ({"constants": "cifar10"}, "`constants` should be one of .* Did you mean 'cifar'?"),
        ({"images": torch.zeros(1, 3, 8, 8)}, "`images` should be uint8"),
        ({"images": torch.zeros(1, 1, 8, 8, dtype=torch.uint8)}, "`images` should be of shape"),
        ({"indices": torch.arange(2)}, "`indices` should be 1 integers"),
    ],
)
def test_bad_input(arguments: dict[str, object], message: str) -> None:
    good = {"images": torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "name": "contrast", "severity": 1}
    with pytest.raises(ValueError, match=message):
        corrupt(**(good | arguments))
