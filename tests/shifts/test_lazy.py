"""What is made of images as they are used depends on the images alone."""

import pytest
import torch

from shiftcal.augment import augmix
from shiftcal.data import MemorySplit
from shiftcal.shifts.lazy import Augmented, Corrupted


@pytest.fixture(scope="module")
def split() -> MemorySplit:
    images = torch.randint(0, 256, (1037, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return MemorySplit(images, torch.arange(1037) % 3)


@pytest.mark.parametrize("make", [lambda s: Augmented(s, 3.0), lambda s: Corrupted(s, "gaussian_noise", 2, "cifar")])
def test_images_do_not_depend_on_the_size_of_a_batch_or_on_ranks(make, split: MemorySplit) -> None:  # type: ignore[no-untyped-def]
    def made(size: int, *ranks: int) -> torch.Tensor:
        parts = [part for rank in ranks or (0,) for part in make(split).parts(size, rank, len(ranks) or 1)]
        images = torch.empty(1037, 3, 32, 32, dtype=torch.uint8)
        for index, part in parts:
            images[index] = part.images
        return images

    whole = made(500)
    assert not torch.equal(whole, split.images)
    for other in (made(64), made(2000), made(100, 0, 1, 2)):
        assert torch.equal(other, whole)


def test_views_are_augmix_of_five_hundred_images_at_a_time(split: MemorySplit) -> None:
    last = next(part.images for _, part in Augmented(split, 3.0).parts(1037))[1000:]
    expected = augmix(split.images[1000:], torch.Generator().manual_seed(1000 * 1000 + 30), views=1, severity=3.0)[0]
    assert torch.equal(last, expected.round().to(torch.uint8))
