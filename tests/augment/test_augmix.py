"""AugMix: each operation against Pillow, then the mixture and its consistency term."""

import importlib
import inspect
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from shiftcal import losses
from shiftcal.augment import OPERATIONS, augmix, augmix_loss, jensen_shannon
from shiftcal.augment.augmix import _operate

BILINEAR = Image.Resampling.BILINEAR


def transformed(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=BILINEAR)


PILLOW = {
    "autocontrast": lambda image, _: ImageOps.autocontrast(image),
    "equalize": lambda image, _: ImageOps.equalize(image),
    "posterize": lambda image, bits: ImageOps.posterize(image, int(bits)),
    "solarize": lambda image, threshold: ImageOps.solarize(image, int(threshold)),
    "rotate": lambda image, degrees: image.rotate(degrees, resample=BILINEAR),
    "shear_x": lambda image, factor: transformed(image, (1, factor, 0, 0, 1, 0)),
    "shear_y": lambda image, factor: transformed(image, (1, 0, 0, factor, 1, 0)),
    "translate_x": lambda image, pixels: transformed(image, (1, 0, pixels, 0, 1, 0)),
    "translate_y": lambda image, pixels: transformed(image, (1, 0, 0, 0, 1, pixels)),
}
MAGNITUDES = {
    "posterize": torch.arange(1.0, 9.0),
    "solarize": torch.tensor([0.0, 1.0, 100.0, 180.0, 255.0, 256.0]),
    "rotate": torch.tensor([-30.0, -8.0, -1.0, 0.0, 1.0, 5.0, 9.0, 30.0]),
    "shear_x": torch.tensor([-0.287, -0.083, -0.013, 0.0, 0.013, 0.083, 0.287]),
    "shear_y": torch.tensor([-0.287, -0.083, -0.013, 0.0, 0.013, 0.083, 0.287]),
    "translate_x": torch.tensor([-10.0, -3.0, -1.0, 0.0, 1.0, 3.0, 10.0]),
    "translate_y": torch.tensor([-10.0, -3.0, -1.0, 0.0, 1.0, 3.0, 10.0]),
}


def special_images(height: int, width: int) -> torch.Tensor:
    """One colour, two tones, few tones, and a dominant lightest tone: where Pillow leaves channels as they are."""
    one, two = torch.full((3, height, width), 77), torch.full((3, height, width), 10)
    two[:, : height // 2] = 250
    few = torch.arange(height * width).view(height, width).expand(3, -1, -1) % 4 * 60
    bright = torch.full((3, height, width), 255)
    bright[:, 0, :5] = 3
    return torch.stack([one, two, few, bright]).to(torch.uint8)


def by_pillow(name: str, images: torch.Tensor, magnitude: torch.Tensor) -> torch.Tensor:
    pairs = zip(images.permute(0, 2, 3, 1).numpy(), magnitude.tolist(), strict=True)
    made = [np.asarray(PILLOW[name](Image.fromarray(np.ascontiguousarray(array)), value)) for array, value in pairs]
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("shape", ["natural_images", "odd_images"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_is_pillows(name: str, shape: str, request: pytest.FixtureRequest) -> None:
    images = request.getfixturevalue(shape)
    images = torch.cat([images, special_images(*images.shape[-2:])])
    values = MAGNITUDES.get(name, torch.zeros(1))
    magnitude = values[torch.arange(len(images)) % len(values)]
    difference = OPERATIONS[name](images, magnitude).int() - by_pillow(name, images, magnitude).int()
    if name in ("rotate", "shear_x", "shear_y"):  # Pillow cuts fractions in float64, we in float32
        assert difference.abs().max() <= 1
        assert (difference != 0).float().mean() < 0.004
    else:
        assert not difference.any()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_treats_each_image_by_itself(name: str, natural_images: torch.Tensor) -> None:
    values = MAGNITUDES.get(name, torch.zeros(1))
    images, magnitude = natural_images[:50], values[torch.arange(50) % len(values)]
    order = torch.randperm(50)
    assert torch.equal(OPERATIONS[name](images[order], magnitude[order]), OPERATIONS[name](images, magnitude)[order])


def test_views_differ_from_the_image_and_from_each_other(natural_images: torch.Tensor) -> None:
    views = augmix(natural_images, torch.Generator().manual_seed(0))
    assert views.shape == (2, *natural_images.shape)
    assert views.min() >= 0
    assert views.max() <= 255.001
    distance = (views - natural_images).abs().mean((0, 2, 3, 4))
    assert (distance > 0.5).float().mean() > 0.9
    assert (views[0] - views[1]).abs().mean() > 1


def test_the_mean_effect_is_that_of_the_per_image_pipeline(natural_images: torch.Tensor) -> None:
    """Compare squared distances to the image over many views with a per-image NumPy and Pillow pipeline."""
    rng, images = np.random.default_rng(0), natural_images
    expected = np.mean(
        [pipeline_distance(array, rng) for array in images.permute(0, 2, 3, 1).numpy() for _ in range(4)]
    )
    views = augmix(images, torch.Generator().manual_seed(0), views=8)
    assert float((views - images).square().mean()) == pytest.approx(expected, rel=0.12)


def pipeline_distance(array: np.ndarray, rng: np.random.Generator) -> float:
    image = Image.fromarray(np.ascontiguousarray(array))
    weights, m = rng.dirichlet([1.0] * 3), rng.beta(1, 1)
    mixture = np.zeros(array.shape)
    for weight in weights:
        chain = image
        for _ in range(rng.integers(1, 4)):
            name = rng.choice(list(PILLOW))
            level, sign = rng.uniform(0.1, 3.0), rng.choice([-1, 1])
            magnitude = {
                "posterize": 4 - int(level * 4 / 10),
                "solarize": 256 - int(level * 256 / 10),
                "rotate": sign * int(level * 30 / 10),
                "shear_x": sign * level * 0.3 / 10,
                "shear_y": sign * level * 0.3 / 10,
                "translate_x": sign * int(level * 32 / 3 / 10),
                "translate_y": sign * int(level * 32 / 3 / 10),
            }
            chain = PILLOW[name](chain, magnitude.get(name))
        mixture += weight * np.asarray(chain, dtype=np.float64)
    return float(np.mean((m * (mixture - array)) ** 2))


LEVELS = torch.tensor([0.1, 0.7, 1.9, 2.7, 3.0])


def authors_magnitude(name: str, level: float, sign: int, height: int, width: int) -> float:
    """The magnitudes of the paper's appendix, in Python's own arithmetic."""
    return {
        "posterize": 4 - int(level * 4 / 10),
        "solarize": 256 - int(level * 256 / 10),
        "rotate": sign * int(level * 30 / 10),
        "shear_x": sign * level * 0.3 / 10,
        "shear_y": sign * level * 0.3 / 10,
        "translate_x": sign * int(level * width / 3 / 10),
        "translate_y": sign * int(level * height / 3 / 10),
    }.get(name, 0.0)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_levels_become_the_authors_magnitudes(name: str, sign: int) -> None:
    images = torch.randint(0, 256, (len(LEVELS), 3, 40, 70), dtype=torch.uint8)
    drawn = torch.full((len(LEVELS),), list(OPERATIONS).index(name))
    magnitude = torch.tensor([authors_magnitude(name, level, sign, 40, 70) for level in LEVELS.tolist()]).float()
    expected = OPERATIONS[name](images, magnitude)
    result = _operate(images.clone(), drawn, LEVELS, torch.full((len(LEVELS),), float(sign)))
    assert (result.int() - expected.int()).abs().max() <= 1
    assert (result != expected).float().mean() < 0.01
    untouched = _operate(images.clone(), torch.full_like(drawn, -1), LEVELS, torch.ones(len(LEVELS)))
    assert torch.equal(untouched, images)


def test_operations_levels_signs_and_lengths_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.Tensor, ...]] = []

    def watched(images: torch.Tensor, *drawn: torch.Tensor) -> torch.Tensor:
        seen.append(drawn)
        return images

    monkeypatch.setattr(importlib.import_module("shiftcal.augment.augmix"), "_operate", watched)
    augmix(torch.zeros(3000, 3, 2, 2, dtype=torch.uint8), torch.Generator().manual_seed(0))
    assert len(seen) == 3
    # A chain's length is 1, 2 or 3: the second and third operation happen in two thirds and in one third of them.
    for (drawn, _, _), share in zip(seen, (1, 2 / 3, 1 / 3), strict=True):
        assert (drawn >= 0).float().mean().item() == pytest.approx(share, abs=0.02)
        counts = torch.bincount(drawn[drawn >= 0], minlength=9) / (drawn >= 0).sum()
        assert len(counts) == 9
        torch.testing.assert_close(counts, torch.full((9,), 1 / 9), atol=0.012, rtol=0)
    level, sign = (torch.cat([step[k] for step in seen]) for k in (1, 2))
    assert level.min() >= 0.1
    assert level.max() <= 3
    assert (level < 0.105).float().mean() < 0.01, "nothing piles up at the lower end"
    assert level.mean().item() == pytest.approx(1.55, abs=0.02)
    assert set(sign.tolist()) == {-1.0, 1.0}
    assert sign.mean().abs() < 0.02


def test_every_image_has_its_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def shades(images: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        """Make the three chains of an image black, dark and light."""
        tones = torch.tensor([0, 100, 200], dtype=torch.uint8).repeat_interleave(len(images) // 3)
        return tones[:, None, None, None].expand_as(images)

    monkeypatch.setattr(importlib.import_module("shiftcal.augment.augmix"), "_operate", shades)
    images = torch.full((2000, 3, 2, 2), 100, dtype=torch.uint8)
    change = augmix(images, torch.Generator().manual_seed(0), views=1)[0, :, 0, 0, 0] - 100
    # 100·(w₂ + 2·w₃ − 1)·m: with one set of weights for all it would have one sign.
    assert 0.4 < (change > 0).float().mean() < 0.6
    assert change.mean().abs() < 2
    # E[m²] = 1/3 and the variance of w₃ − w₁ is 1/6.
    assert change.square().mean().item() == pytest.approx(100**2 / 18, rel=0.1)


def test_severity_depth_and_width_matter(natural_images: torch.Tensor) -> None:
    def distance(**options: float) -> float:
        return float(
            (augmix(natural_images, torch.Generator().manual_seed(1), **options) - natural_images).abs().mean()
        )

    assert distance(severity=10.0) > 1.3 * distance(severity=3.0) > 1.3 * distance(severity=0.2)
    assert distance(depth=6) > 1.1 * distance(depth=1)
    assert distance(width=1) > 1.1 * distance(width=8), "a mean of more chains is nearer to the image"


def test_divergence_is_its_formula_zero_for_equal_views_and_at_most_log_v() -> None:
    logits = torch.randn(3, 16, 10, dtype=torch.float64)
    p = logits.softmax(-1).numpy()
    mean = p.mean(0)
    expected = (p * (np.log(p) - np.log(mean))).sum(-1).mean()
    assert jensen_shannon(logits).item() == pytest.approx(expected, rel=1e-9)
    assert jensen_shannon(logits[:1].expand(3, -1, -1)).item() == pytest.approx(0, abs=1e-12)
    apart = 1e4 * torch.eye(3)[:, None, :]
    assert jensen_shannon(apart).item() == pytest.approx(math.log(3))
    assert jensen_shannon(apart[:2]).item() == pytest.approx(math.log(2))


def test_divergence_has_the_right_gradient() -> None:
    assert torch.autograd.gradcheck(jensen_shannon, torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True))
    extreme = (1e4 * torch.randn(3, 8, 5)).requires_grad_()
    jensen_shannon(extreme).backward()
    assert extreme.grad.isfinite().all()


def test_objective_is_the_main_loss_on_the_clean_view_plus_twelve_divergences() -> None:
    logits, targets = torch.randn(12, 5, dtype=torch.float64), torch.arange(4)
    expected = losses.dual_focal(logits[:4], targets) + 12 * jensen_shannon(logits.view(3, 4, 5))
    torch.testing.assert_close(augmix_loss(losses.dual_focal, logits, targets), expected)


def test_the_defaults_are_the_papers() -> None:
    defaults = {n: p.default for f in (augmix, augmix_loss) for n, p in inspect.signature(f).parameters.items()}
    assert {n: defaults[n] for n in ("views", "width", "depth", "severity", "weight")} == {
        "views": 2,
        "width": 3,
        "depth": 3,
        "severity": 3.0,
        "weight": 12.0,
    }


@pytest.mark.usefixtures("unchecked")
def test_bad_input() -> None:
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    for options, message in [
        ({"views": 0}, "`views` should be an integer of at least 1"),
        ({"width": 0}, "`width` should be an integer of at least 1"),
        ({"depth": True}, "`depth` should be an integer of at least 1"),
        ({"depth": 1.5}, "`depth` should be an integer of at least 1"),
        ({"severity": 0.0}, "`severity` should be in 0.1..10"),
    ]:
        with pytest.raises(ValueError, match=message):
            augmix(images, **options)
    with pytest.raises(ValueError, match=r"`logits` should be of two or more views of 4 images. Found `logits = .6, 5"):
        augmix_loss(losses.cross_entropy, torch.zeros(6, 5), torch.arange(4))
    with pytest.raises(ValueError, match="`weight` should be at least 0"):
        augmix_loss(losses.cross_entropy, torch.zeros(8, 5), torch.arange(4), weight=-1.0)
    with pytest.raises(ValueError, match=r"`logits` should be floating point of shape \[V, N, K\]"):
        jensen_shannon(torch.zeros(4, 5))
