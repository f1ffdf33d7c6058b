"""What a data set is to the rest of the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int
from torch import Tensor

from shiftcal._tensors import check_range
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import FileSplit, ImageSplit


def shares_of(targets: Int[Tensor, " n"], classes: int) -> tuple[float, ...]:
    """Return the share of each class among some samples.

    Example:
        >>> shares_of(torch.tensor([0, 2, 2, 0]), 3)
        (0.5, 0.0, 0.5)
    """
    return tuple((torch.bincount(targets.cpu().long(), minlength=classes).double() / len(targets)).tolist())


@dataclass(frozen=True)
class Dataset:
    """Training, validation and test images of one source, and the shifts that only this source can make.

    Attributes:
        name: Its name.
        classes: The names of the classes, in the order of their indices.
        preprocess: What makes stored images a model's input, unless the model or the recipe says otherwise.
        train: Training images.
        validation: Validation images.
        test: Test images, in distribution.
        shifts: Shifted test sets by name and severity, mildest first; corruptions that work on any image are not
            listed here.
        other_tests: Further test sets, which are reported but are no part of the mean over the shifts.
        cut_from_train: Which of "validation" and "test" were cut out of what the source has for training: a model
            that somebody else trained may have seen them.
    """

    name: str
    classes: tuple[str, ...]
    preprocess: Preprocessing
    train: ImageSplit
    validation: ImageSplit
    test: ImageSplit
    shifts: Mapping[str, tuple[ImageSplit, ...]] = field(default_factory=dict)
    other_tests: Mapping[str, ImageSplit] = field(default_factory=dict)
    cut_from_train: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for split in (self.train, self.validation, self.test):
            check_range(split.targets, len(self.classes))

    @property
    def prior(self) -> tuple[float, ...]:
        """The share of each class among the training images."""
        return shares_of(self.train.targets, len(self.classes))

    def with_workers(self, workers: int) -> Dataset:
        """Set how many worker processes decode images from disk."""

        def change(split: ImageSplit) -> ImageSplit:
            return replace(split, workers=workers) if isinstance(split, FileSplit) else split

        return replace(
            self,
            train=change(self.train),
            validation=change(self.validation),
            test=change(self.test),
            shifts={name: tuple(map(change, splits)) for name, splits in self.shifts.items()},
            other_tests={name: change(split) for name, split in self.other_tests.items()},
        )
