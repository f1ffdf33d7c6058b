"""Ranks that decode their own rows of a batch draw what one process draws for these rows."""

from collections.abc import Callable

import pytest
import torch

from shiftcal.augment import AUGMENTATIONS
from shiftcal.augment._inputs import Rows
from shiftcal.augment.augmix import augmix_of


@pytest.mark.parametrize(
    "make",
    [
        lambda images, generator, rows: AUGMENTATIONS["crop_flip"](images, generator, rows_of=rows)[None],
        lambda images, generator, rows: augmix_of(images, generator, rows_of=rows),
    ],
    ids=["crop and flip", "augmix"],
)
def test_rows_are_those_of_the_whole_batch(make: Callable[..., torch.Tensor]) -> None:
    images = torch.randint(0, 256, (11, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    generators = [torch.Generator().manual_seed(2) for _ in range(4)]
    whole = make(images, generators[0], None)
    parts = [
        make(images[start:end], generator, Rows(start, 11))
        for generator, (start, end) in zip(generators[1:], ((0, 4), (4, 8), (8, 11)), strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=0)
    drawn = [torch.rand(1, generator=generator) for generator in generators]
    assert len({float(value) for value in drawn}) == 1, "all have drawn alike"
