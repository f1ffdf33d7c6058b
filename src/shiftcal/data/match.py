"""Classes matched by name: a data set's targets become the indices that a trained model has for the same names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from shiftcal._errors import DataError
from shiftcal.data.dataset import Dataset
from shiftcal.data.split import FileSplit, ImageSplit, MemorySplit

_SHOWN = 5
_NEAREST = 3


def match_classes(dataset: Dataset, known: Sequence[str]) -> Dataset:
    """Give a data set the classes that a model knows, in the model's order, and its targets the model's indices.

    The data set may have fewer classes, in any order; a name that the model does not know is an error.
    """
    known = tuple(known)
    if dataset.classes == known:
        return dataset
    index = indices_of(dataset.classes, known)
    changed: dict[int, ImageSplit] = {}  # a split that stands for two parts stays one

    def change(split: ImageSplit) -> ImageSplit:
        if id(split) not in changed:
            changed[id(split)] = with_targets(split, index.to(split.targets.device)[split.targets.long()])
        return changed[id(split)]

    return replace(
        dataset,
        classes=known,
        train=change(dataset.train),
        validation=change(dataset.validation),
        test=change(dataset.test),
        shifts={name: tuple(map(change, splits)) for name, splits in dataset.shifts.items()},
        other_tests={name: change(split) for name, split in dataset.other_tests.items()},
    )


def indices_of(classes: Iterable[str], known: Sequence[str]) -> Int[Tensor, " classes"]:
    """Look up the index of each class among those that a model knows; one that it does not know is an error.

    Example:
        >>> indices_of(("dog", "cat"), ("cat", "cow", "dog"))
        tensor([2, 0])
    """
    place, classes = {name: index for index, name in enumerate(known)}, tuple(classes)
    if strange := [name for name in classes if name not in place]:
        raise _unknown_classes(strange, known)
    if len(place) < len(known) or len(set(classes)) < len(classes):
        raise DataError("classes", "of different names, where they are matched by name", _listed(known, _SHOWN))
    return torch.tensor([place[name] for name in classes], dtype=torch.int64)


def with_targets(split: ImageSplit, targets: Int[Tensor, " n"]) -> ImageSplit:
    """Give the images of a split other targets."""
    if isinstance(split, MemorySplit | FileSplit):
        return replace(split, targets=targets)
    raise DataError("split", "images in memory or on disk", type(split).__name__)


def _unknown_classes(strange: Sequence[str], known: Sequence[str]) -> DataError:
    more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
    found = ", ".join(f"'{name}'{_nearest(name, known)}" for name in strange[:_SHOWN])
    expected = f"some of the {len(known)} that the model was trained on ({_listed(known, 2 * _SHOWN)})"
    return DataError("classes", expected, found + more, " Rename or remove the folders of other classes.")


def _nearest(name: str, known: Iterable[str]) -> str:
    by_lower_case = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower_case, n=_NEAREST, cutoff=0.5)
    return f" (nearest: {', '.join(by_lower_case[other] for other in found)})" if found else " (nothing like it)"


def _listed(names: Sequence[str], shown: int) -> str:
    return ", ".join(names[:shown]) + (", …" if len(names) > shown else "")
