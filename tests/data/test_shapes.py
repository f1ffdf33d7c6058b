import pytest
import torch

from shiftcal import data
from shiftcal.data.shapes import SILHOUETTES, draw_shapes


@pytest.fixture(scope="module")
def small() -> data.Dataset:
    return data.load("shapes", train=160, validation=80, test=80)


def test_is_a_function_of_its_seed(small: data.Dataset) -> None:
    again, other = (data.load("shapes", seed=s, train=160, validation=80, test=80) for s in (0, 1))
    assert torch.equal(small.train.images, again.train.images)
    assert torch.equal(small.test.targets, again.test.targets)
    assert not torch.equal(small.train.images, other.train.images)
    assert not torch.equal(small.train.images[:80], small.test.images)


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
    with pytest.raises(ValueError, match=r"`name` should be one of shapes. .*Did you mean 'shapes'?"):
        data.load("shape")
