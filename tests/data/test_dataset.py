import dataclasses

import pytest
import torch

from shiftcal import data

IMAGES = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
TARGETS = torch.tensor([0, 1, 0, 1])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("images", "targets", "message"),
    [
        (IMAGES.float(), TARGETS, "`images` should be uint8 of shape .N, 3, H, W.. Found `images = torch.float32"),
        (IMAGES[:, :1], TARGETS, "Found `images = torch.uint8 .4, 1, 8, 8."),
        (IMAGES, TARGETS[:3], "`targets` should be of shape .4., one per sample. Found `targets = .3."),
        (IMAGES, TARGETS.float(), "`targets` should be integer class indices"),
    ],
)
def test_a_split_checks_what_it_holds(images: torch.Tensor, targets: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.MemorySplit(images, targets)


def test_a_data_set_checks_its_classes() -> None:
    split = data.MemorySplit(IMAGES, TARGETS)
    usual = data.Preprocessing((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    good = data.Dataset("mine", ("a", "b"), usual, split, split, split)
    for bad in (TARGETS + 1, TARGETS - 1):
        with pytest.raises(ValueError, match=r"`targets` should be in 0..1"):
            dataclasses.replace(good, validation=data.MemorySplit(IMAGES, bad))


def test_normalises() -> None:
    preprocess = data.Preprocessing((0.1, 0.2, 0.3), (0.1, 0.2, 0.4))
    assert preprocess(IMAGES + 51)[0, :, 0, 0].tolist() == pytest.approx([1.0, 0.0, -0.25])
