"""Classes are matched by name, never by their place."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shiftcal.data import Dataset, FileSplit, MemorySplit, Preprocessing
from shiftcal.data.match import match_classes


def split(*targets: int) -> MemorySplit:
    return MemorySplit(torch.zeros(len(targets), 3, 4, 4, dtype=torch.uint8), torch.tensor(targets))


def dataset(classes: tuple[str, ...], **parts: object) -> Dataset:
    plain = Preprocessing((0.5,) * 3, (0.5,) * 3)
    own = {"train": split(0, 1, 1), "validation": split(1, 0), "test": split(0, 0, 1)} | parts
    return Dataset("made", classes, plain, **own)


def names(found: Dataset, part: MemorySplit) -> list[str]:
    return [found.classes[target] for target in part.targets]


@pytest.mark.parametrize("known", [("dog", "cat"), ("cat", "cow", "dog"), ("zebra", "dog", "ant", "cat")])
def test_every_image_keeps_the_name_of_its_class(known: tuple[str, ...]) -> None:
    made = dataset(("cat", "dog"), shifts={"fog": (split(1), split(0))}, other_tests={"more": split(1, 1, 0)})
    found = match_classes(made, known)
    assert found.classes == known
    pairs = [(made.train, found.train), (made.validation, found.validation), (made.test, found.test)]
    pairs += [*zip(made.shifts["fog"], found.shifts["fog"], strict=True)]
    pairs += [(made.other_tests["more"], found.other_tests["more"])]
    for before, after in pairs:
        assert names(made, before) == names(found, after)


def test_the_same_classes_change_nothing() -> None:
    made = dataset(("cat", "dog"))
    assert match_classes(made, ["cat", "dog"]) is made


def test_files_are_matched_too_and_one_split_for_two_parts_stays_one() -> None:
    files = FileSplit((Path("a.png"),), torch.tensor([0]), size=4)
    test = split(1)
    made = replace(dataset(("cat", "dog")), train=files, validation=test, test=test)
    found = match_classes(made, ("dog", "cat"))
    assert found.test is found.validation
    assert found.test.targets.tolist() == [0]
    assert found.train.targets.tolist() == [1]


def test_an_unknown_class_is_named_with_the_nearest_known_ones() -> None:
    known = ("tabby cat", "tabby cats", "dog")
    with pytest.raises(ValueError, match=r"some of the 3 .*\(tabby cat, tabby cats, dog\)") as error:
        match_classes(dataset(("Tabby_cat", "xylophone")), known)
    assert "'Tabby_cat' (nearest: tabby cat, tabby cats), 'xylophone' (nothing like it)" in str(error.value)


def test_names_that_stand_twice_cannot_be_matched() -> None:
    with pytest.raises(ValueError, match="of different names"):
        match_classes(dataset(("cat", "dog")), ("cat", "dog", "cat"))
