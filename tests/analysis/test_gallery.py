"""Galleries and strips: which images are kept, and what becomes of them."""

import pytest
import torch
from torch import Tensor, nn

from shiftcal.analysis.gallery import middle_severity, samples_of, thumbnail_of
from shiftcal.analysis.strips import filtered_strips
from shiftcal.data.split import MemorySplit
from shiftcal.filtering import dct_low_pass


class ByBrightness(nn.Module):
    """Predicts class 1 with a logit that is the image's first pixel."""

    def forward(self, images: Tensor) -> Tensor:
        level = images[:, 0, 0, 0].float()
        return torch.stack([torch.zeros_like(level), level], 1)


def split() -> MemorySplit:
    """Forty images: the k-th has logit k for class 1; true classes alternate."""
    images = torch.zeros(40, 3, 8, 8, dtype=torch.uint8)
    images[:, :] = torch.arange(40, dtype=torch.uint8)[:, None, None, None] / 4
    return MemorySplit(images, torch.arange(40) % 2)


@pytest.mark.parametrize("batch_size", [7, 100])
def test_the_surest_mistakes_and_the_first_right_ones_are_kept(batch_size: int) -> None:
    found = samples_of(ByBrightness(), split(), lambda x: x, mistakes=3, right=2, batch_size=batch_size, shift="fog")
    assert [one.right for one in found] == [False, False, False, True, True]
    assert all(one.true == 0 and one.predicted == 1 for one in found[:3])
    levels = [int(one.thumbnail[0, 0, 0]) for one in found]
    assert levels[:3] == [9, 9, 8], "of images 38, 36 and 34"
    assert found[0].confidence == pytest.approx(torch.tensor([0.0, 9.0]).softmax(0)[1].item())
    assert {one.shift for one in found} == {"fog"}


def test_no_more_images_are_looked_at_than_asked() -> None:
    found = samples_of(ByBrightness(), split(), lambda x: x, mistakes=3, right=2, batch_size=10, look=20)
    assert max(int(one.thumbnail[0, 0, 0]) for one in found) == 4


def test_thumbnails_keep_their_shape() -> None:
    image = torch.full((3, 200, 100), 77, dtype=torch.uint8)
    small = thumbnail_of(image)
    assert small.shape == (3, 64, 32)
    assert small.unique().tolist() == [77]
    assert torch.equal(thumbnail_of(image[:, :40, :30]), image[:, :40, :30])


def test_the_middle_severity_stands_for_a_shift() -> None:
    assert middle_severity([1, 2, 3, 4, 5]) == 3
    assert middle_severity([1, 2, 4]) == 2
    assert middle_severity([None]) is None


def test_strips_are_the_images_and_their_filtered_versions(natural_images: Tensor) -> None:
    found = filtered_strips(natural_images[:4], (25, 5))
    assert torch.equal(found[0], natural_images[:4])
    assert torch.equal(found[2], dct_low_pass(natural_images[:4], 5))
