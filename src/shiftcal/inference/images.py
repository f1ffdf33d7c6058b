"""The images of an audit: from what a user names to splits, and what tells them from others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shiftcal import _distributed, data
from shiftcal._errors import DataError, wrong
from shiftcal._io import sha256_of
from shiftcal.auditing.audit import Images
from shiftcal.data.dataset import Dataset
from shiftcal.data.files.listing import Tree, find_images
from shiftcal.data.files.read import read_split
from shiftcal.data.match import indices_of, with_targets
from shiftcal.data.sources.folders import find_test_folder, with_images
from shiftcal.data.split import FileSplit, ImageSplit, MemorySplit
from shiftcal.experiments.config import load_config
from shiftcal.experiments.recipes import recipe_names
from shiftcal.experiments.setup import load_dataset
from shiftcal.inference.open_model import Opened
from shiftcal.inference.request import Wanted, fit_of
from shiftcal.shifts.corruptions import named

_VALIDATION = ("val", "validation", "valid")
_TAKEN = ("clean", "test", "validation")  # names that no shift may have


def source_of(wanted: Wanted, opened: Opened) -> tuple[Dataset | None, Path | None]:
    """Find the data: a data set by name, that of a recipe or of the run, or a folder."""
    if wanted.data is None:
        if opened.data is None:
            raise wrong("data", "given: --data FOLDER, a prepared data set or a recipe", "nothing")
        return opened.data(), None
    if Path(wanted.data).is_dir():
        return None, Path(wanted.data)
    if (":" in wanted.data or wanted.data in data.ADDED.names()) and wanted.data not in data.BY_PATH:
        return data.load(wanted.data), None
    if wanted.data in recipe_names() or wanted.data.endswith(".toml"):
        return load_dataset(load_config(wanted.data)), None
    names = ", ".join(name for name in data.ADDED.names() if name not in data.BY_PATH)
    raise wrong("data", f"a folder, one of {names}, or a recipe", wanted.data)


def images_of(
    wanted: Wanted, dataset: Dataset | None, root: Path | None, known: Mapping[str, Any], *, named: bool, progress: bool
) -> Images:
    """Collect the images of an audit: with the data set's classes, or with those that its folders have together.

    Where the model's classes are not named, their number alone tells whether these are the same: a shift's folders
    then bring no further ones, which might be slips of the pen.
    """

    def read(tree: Tree, classes: tuple[str, ...]) -> ImageSplit:
        shows = progress and _distributed.rank() == 0
        # Folders beside a data set become what its images are; the rest of the way is the same for all.
        size = known.get("size") if dataset is None else _side(dataset.test)
        title = tree.root.name
        split = read_split(tree.files, tree.targets, size=size, fit=fit_of(known), title=title, progress=shows)
        if classes == tree.classes:
            return split
        return with_targets(split, indices_of(tree.classes, classes)[split.targets.long()])

    _check_names(wanted, dataset.shifts if dataset is not None else {})
    below = {shift: with_images(find_images(folder), least=1) for shift, folder in wanted.shifts.items()}
    held_out = _validation_folder(wanted, root)
    beside = with_images(find_images(held_out), least=1) if held_out is not None else None
    if dataset is not None:
        classes, test, name, shifts = dataset.classes, dataset.test, dataset.name, dict(dataset.shifts)
        validation = dataset.validation if dataset.test is not dataset.validation else None
    elif root is not None:
        tree = with_images(find_images(find_test_folder(root)), least=1)
        trees = [tree, *(below.values() if named else ()), *([beside] if beside is not None else [])]
        classes = tuple(sorted({kind for one in trees for kind in one.classes}))  # test images may lack some
        test, name, shifts, validation = read(tree, classes), root.resolve().name, {}, None
    else:
        raise wrong("data", "given", "nothing")
    if beside is not None:
        validation = read(beside, classes)
    shifts |= {shift: (read(tree, classes),) for shift, tree in below.items()}
    return Images(name, classes, test, validation, shifts)


def _validation_folder(wanted: Wanted, root: Path | None) -> Path | None:
    """Find the validation images that are files: in the folder that was given, or beside the test images."""
    if wanted.validation is not None:
        return wanted.validation
    if root is None or find_test_folder(root) == root:
        return None
    return next((root / name for name in _VALIDATION if (root / name).is_dir()), None)


def _side(split: ImageSplit) -> int | None:
    """Return the side of square images."""
    _, height, width = split.shape
    return height if height == width else None


def _check_names(wanted: Wanted, shifts: Mapping[str, object]) -> None:
    taken = {*_TAKEN, *shifts, *named(wanted.corruptions)}
    if strange := sorted(taken & set(wanted.shifts)):
        raise wrong("shift", "a name that no other test set has", strange[0])


def digest_of(split: ImageSplit | None) -> str | None:
    """Tell images and their classes from others: by their pixels, or by their files' names, sizes and times."""
    if split is None:
        return None
    found = hashlib.sha256(split.targets.cpu().numpy().tobytes())
    if isinstance(split, MemorySplit):
        found.update(split.images.cpu().numpy().tobytes())
    elif isinstance(split, FileSplit):
        for path in split.files:
            state = path.lstat()  # a link may lead nowhere
            found.update(f"{path.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    else:
        raise _unknown_kind(split)
    return found.hexdigest()


def digests_of(images: Images) -> dict[str, Any]:
    """Tell all images of an audit from others."""
    shifts = {name: [digest_of(split) for split in splits] for name, splits in images.shifts.items()}
    return {"test": digest_of(images.test), "validation": digest_of(images.validation), "shifts": shifts}


def shared_images(images: Images) -> int:
    """Count the validation images that are test images too: the same pixels in memory, the same files on disk."""
    test, validation = images.test, images.validation
    if isinstance(test, MemorySplit) and isinstance(validation, MemorySplit):
        return len(_pixels(test) & _pixels(validation))
    if isinstance(test, FileSplit) and isinstance(validation, FileSplit):
        return _shared_files(test.files, validation.files)
    return 0


def _pixels(split: MemorySplit) -> set[bytes]:
    return {hashlib.sha1(image.numpy().tobytes(), usedforsecurity=False).digest() for image in split.images.cpu()}


def _shared_files(test: Sequence[Path], validation: Sequence[Path]) -> int:
    """Count the validation files with the content of a test file; only files of one size are read."""
    sizes = [{path: path.stat().st_size for path in files if path.is_file()} for files in (test, validation)]
    common = set(sizes[0].values()) & set(sizes[1].values())
    first, second = ({sha256_of(path) for path, size in found.items() if size in common} for found in sizes)
    return len(first & second)


def _unknown_kind(split: ImageSplit) -> DataError:
    return DataError("split", "images in memory or on disk", type(split).__name__)
