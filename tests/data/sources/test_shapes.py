import pytest
import torch

from shiftcal import data
from shiftcal.data.sources.shapes import SILHOUETTES, draw_shapes


@pytest.fixture(scope="module")
def small() -> data.Dataset:
    return data.load("shapes", train=160, validation=80, test=80)


def test_is_a_function_of_its_seed(small: data.Dataset) -> None:
    again, other = (data.load("shapes", seed=s, train=160, validation=80, test=80) for s in (0, 1))
    assert torch.equal(small.train.images, again.train.images)
    assert torch.equal(small.test.targets, again.test.targets)
    assert not torch.equal(small.train.images, other.train.images)
    assert not torch.equal(small.train.images[:80], small.test.images)


def test_no_image_stands_in_two_parts_or_under_two_seeds() -> None:
    sets = [data.load("shapes", seed=seed, train=80, validation=80, test=80) for seed in (0, 1)]
    images = [image for d in sets for split in (d.train, d.validation, d.test) for image in split.images]
    assert len({image.numpy().tobytes() for image in images}) == len(images)


def test_severities_lower_the_match_in_equal_steps() -> None:
    own = data.load("shapes", train=8, validation=8, test=800, texture_match=1.0).test.images
    shifts = data.load("shapes", train=8, validation=8, test=800).shifts["texture"]
    shares = [float((split.images == own).flatten(1).all(1).float().mean()) for split in shifts]
    assert shares == pytest.approx([0.52, 0.39, 0.26, 0.13, 0], abs=0.06)


def test_images_are_those_that_were_measured() -> None:
    # Pinned pixels: the published numbers are of this very set.
    images, _ = draw_shapes(4, seed=0, match=0.65, amplitude=0.06)
    pinned = [
        [118, 98, 125, 111, 115, 135, 107, 130],
        [55, 55, 32, 63, 56, 31, 67, 59],
        [113, 120, 127, 130, 114, 128, 132, 117],
        [35, 13, 34, 56, 25, 23, 42, 42],
    ]
    assert (images[:, 0, 16, 12:20].int() - torch.tensor(pinned)).abs().max() <= 1


def test_has_eight_balanced_classes_of_small_colour_images(small: data.Dataset) -> None:
    assert small.train.images.shape == (160, 3, 32, 32)
    assert small.train.images.dtype == torch.uint8
    assert len(small.classes) == len(SILHOUETTES) == 8
    assert torch.bincount(small.train.targets).tolist() == [20] * 8


def test_the_texture_shift_changes_the_texture_alone(small: data.Dataset) -> None:
    clean, shifted = small.test.images.float(), small.shifts["texture"][4].images.float()
    changed = (clean - shifted).abs().amax((1, 2, 3)) > 0
    assert torch.equal(small.test.targets, small.shifts["texture"][4].targets)
    assert 0.4 < changed.float().mean() < 0.9  # the 65 % that wore their class's texture
    # What changes is fine and faint: a blur over five pixels removes nearly all of it.
    blurred = torch.nn.functional.avg_pool2d(clean - shifted, 5, stride=1)
    assert blurred.abs().mean() < 0.2 * (clean - shifted).abs().mean()
    assert (clean - shifted).abs().max() <= 60


def test_severity_lowers_how_often_the_texture_matches() -> None:
    matches = []
    for match in (1.0, 0.65, 0.0):
        images, targets = draw_shapes(400, seed=3, match=match, amplitude=0.06)
        own, _ = draw_shapes(400, seed=3, match=1.0, amplitude=0.06)
        matches.append(float((images == own).flatten(1).all(1).float().mean()))
        assert len(targets) == 400
    assert matches[0] == 1
    assert matches[1] == pytest.approx(0.65, abs=0.08)
    assert matches[2] == 0


def test_without_amplitude_there_is_no_texture() -> None:
    one, _ = draw_shapes(20, seed=0, match=1.0, amplitude=0.0)
    other, _ = draw_shapes(20, seed=0, match=0.0, amplitude=0.0)
    assert torch.equal(one, other)


def test_silhouettes_differ() -> None:
    line = torch.linspace(-1, 1, 64)
    y, x = torch.meshgrid(line, line, indexing="ij")
    inside = torch.stack([silhouette(x, y) < 0 for silhouette in SILHOUETTES.values()]).flatten(1).float()
    overlap = inside @ inside.T / torch.minimum(inside.sum(1), inside.sum(1)[:, None])
    union = (inside[:, None] + inside[None]).clamp(max=1).sum(-1)
    intersection_over_union = (inside @ inside.T / union).fill_diagonal_(0)
    assert overlap.shape == (8, 8)
    assert intersection_over_union.max() < 0.93
    assert (inside.mean(1) > 0.1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 3}, "`train` should be at least 8, one image per class. Found `train = 3`"),
        ({"texture_match": 1.5}, r"`texture_match` should be in \[0, 1\]"),
        ({"texture_amplitude": -1.0}, "`texture_amplitude` should be in"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.load("shapes", **options)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"`data.name` should be one of .*Did you mean 'shapes'?"):
        data.load("shape")
