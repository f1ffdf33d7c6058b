"""Anybody's folders of images: one set, or one for each domain."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from shiftcal._errors import unknown, wrong
from shiftcal.data.dataset import Dataset
from shiftcal.data.files.images import Fit
from shiftcal.data.files.listing import Tree, find_images
from shiftcal.data.files.read import Loader, fits_memory, read_split
from shiftcal.data.hold_out import hold_out
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import ImageSplit, MemorySplit, join

IMAGENET = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_SHOWN = 5
_NAMES = {"train": ("train",), "validation": ("val", "validation", "valid"), "test": ("test",)}


@dataclass(frozen=True)
class _Reading:
    """How the files of a tree are read."""

    size: int | None
    fit: Fit
    loader: Loader
    progress: bool

    def __call__(self, tree: Tree) -> ImageSplit:
        return read_split(
            tree.files,
            tree.targets,
            size=self.size,
            fit=self.fit,
            loader=self.loader,
            title=tree.root.name,
            progress=self.progress,
        )


def folder(
    root: str | Path,
    *,
    size: int | None = None,
    fit: Fit = "crop",
    loader: Loader = "auto",
    seed: int = 0,
    progress: bool = True,
) -> Dataset:
    """Load a user's images: `train/`, `val/` and `test/` with a folder for each class, or one such tree.

    One tree is split 80/10/10, a missing `val` is a tenth of `train`, seeded and of every class alike; `test` has to be
    there beside `train`. Classes are those of the training images.
    """
    root, read = Path(root), _Reading(size, fit, loader, progress)
    parts = {part: next((root / n for n in names if (root / n).is_dir()), None) for part, names in _NAMES.items()}
    if parts["train"] is None:
        tree = with_images(find_images(root))
        _warn_of_parts(tree)
        return _dataset("folder", tree.classes, *_eighty_ten_ten(read(tree), seed), cut=("validation", "test"))
    if parts["test"] is None:
        found = ", ".join(sorted(p.name for p in root.iterdir())[:8])
        hint = " (val/ may be renamed: a tenth of train/ is held out then)" if parts["validation"] is not None else ""
        expected = f"a folder with train/ and test/{hint}, or one tree of class folders"
        raise wrong("data.root", expected, f"{root}: {found}")
    tree = with_images(find_images(parts["train"]))
    train = read(tree)
    test = read(_same_classes(parts["test"], tree))
    if parts["validation"] is not None:
        return _dataset("folder", tree.classes, train, read(_same_classes(parts["validation"], tree)), test)
    held = hold_out(train.targets, share=0.1, seed=seed)
    return _dataset("folder", tree.classes, train.take(~held), train.take(held), test, cut=("validation",))


def as_test_set(
    root: str | Path, *, size: int | None = None, fit: Fit = "crop", loader: Loader = "auto", progress: bool = True
) -> Dataset:
    """Load a user's images as one test set: `test/` with a folder for each class, or all of such a tree.

    There are no training and no validation images.
    """
    tree = with_images(find_images(find_test_folder(Path(root))), least=1)
    test = _Reading(size, fit, loader, progress)(tree)
    none = MemorySplit(torch.empty(0, *test.shape, dtype=torch.uint8), torch.empty(0, dtype=torch.int64))
    return Dataset("folder", tree.classes, IMAGENET, none, none, test)


def find_test_folder(root: Path) -> Path:
    """Find the test images of a user's folder: those in `test/`, or all; one with other parts alone is an error."""
    other = [name for part in ("train", "validation") for name in _NAMES[part] if (root / name).is_dir()]
    if other and not (root / "test").is_dir():
        expected = f"a folder with test/, or one tree of class folders (such as {root / other[0]})"
        raise wrong("data", expected, f"{root}, with {', '.join(f'{name}/' for name in other)} alone")
    return root / "test" if (root / "test").is_dir() else root


def domains(
    root: str | Path,
    *,
    holdout: str | None = None,
    name: str = "domains",
    size: int = 224,
    fit: Fit = "stretch",
    loader: Loader = "auto",
    seed: int = 0,
    progress: bool = True,
) -> Dataset:
    """Load `<root>/<domain>/<class>/*` with one domain held out as the shift (Office-Home, PACS, DomainNet).

    Each of the other domains is split 80/10/10 by the seed into training, validation and test images.
    """
    root = Path(root)
    if not root.is_dir():
        raise wrong("data.root", "a folder with a folder for each domain", str(root))
    found = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if holdout is None:
        raise wrong("data.holdout", f"given: --holdout and one of {', '.join(found)}", "nothing")
    if holdout not in found:
        raise unknown("data.holdout", holdout, found)
    if len(found) < 2:
        raise wrong("data.root", "a folder with two domains or more", f"{root}: {', '.join(found)}")
    classes = find_images(root / holdout).classes
    trees = {domain: with_images(_of_classes(root / domain, classes)) for domain in found}
    asked = loader
    sources = [tree for domain, tree in trees.items() if domain != holdout]
    if loader == "auto":  # they become one set: all of them go into memory, or none
        loader = "memory" if fits_memory([file for tree in sources for file in tree.files], size) else "stream"
    read = _Reading(size, fit, loader, progress)
    thirds = [_eighty_ten_ten(read(tree), seed) for tree in sources]
    train, validation, test = (join([parts[k] for parts in thirds]) for k in range(3))
    shifted = _Reading(size, fit, asked, progress)(trees[holdout])
    return _dataset(name, classes, train, validation, test, {holdout: (shifted,)}, ("validation", "test"))


def with_images(tree: Tree, least: int = 2) -> Tree:
    """Warn of class folders without images, whose classes stay; fewer than `least` others are an error."""
    filled = set(tree.targets)
    empty = [str(tree.root / name) for target, name in enumerate(tree.classes) if target not in filled]
    if empty and len(filled) < least:
        raise wrong("folder", f"one with images in at least {least} classes", f"{empty[0]}, without images")
    if empty:
        more = f" and {len(empty) - _SHOWN} more" if len(empty) > _SHOWN else ""
        listed = ", ".join(empty[:_SHOWN]) + more
        warnings.warn(f"There are no images in {listed}. Their classes stay in the list, unseen.", stacklevel=3)
    return tree


def _warn_of_parts(tree: Tree) -> None:
    """Warn where all class folders have the same folders in them: those may be the classes, and these the parts."""
    inside: dict[int, set[str]] = {}
    for file, target in zip(tree.files, tree.targets, strict=True):
        inside.setdefault(target, set()).add(file.relative_to(tree.root).parts[1])
    first, *others = inside.values()
    if len(first) > 1 and all(other == first for other in others) and not any("." in name for name in first):
        taken, names = ", ".join(tree.classes[:_SHOWN]), ", ".join(sorted(first)[:_SHOWN])
        warnings.warn(
            f"The classes are taken to be {taken}, and each of these folders has {names} in it. If {names} are the "
            "classes, name the folders train/, val/ and test/, or take them for domains (recipe domains, --holdout).",
            stacklevel=3,
        )


def _eighty_ten_ten(split: ImageSplit, seed: int) -> tuple[ImageSplit, ImageSplit, ImageSplit]:
    """Cut a set into training, validation and test images, of every class alike."""
    held = hold_out(split.targets, share=0.2, seed=seed)
    rest = split.take(held)
    second = hold_out(rest.targets, share=0.5, seed=seed + 1)
    return split.take(~held), rest.take(~second), rest.take(second)


def _same_classes(path: Path, train: Tree) -> Tree:
    """Find images; a class that the training images do not have is an error, one without images is not."""
    here = {p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")}
    if extra := sorted(here - set(train.classes)):
        raise wrong("data.root", "one whose classes are all in train/", f"{path} has {', '.join(extra[:3])} as well")
    return _of_classes(path, tuple(c for c in train.classes if c in here), train.classes)


def _of_classes(path: Path, present: tuple[str, ...], classes: tuple[str, ...] | None = None) -> Tree:
    tree, order = find_images(path, present), classes or present
    return Tree(tree.root, order, tree.files, tuple(order.index(present[t]) for t in tree.targets))


def _dataset(
    name: str,
    classes: tuple[str, ...],
    train: ImageSplit,
    validation: ImageSplit,
    test: ImageSplit,
    shifts: dict[str, tuple[ImageSplit, ...]] | None = None,
    cut: tuple[str, ...] = (),
) -> Dataset:
    for part, split in (("training", train), ("validation", validation), ("test", test)):
        if len(split) == 0:
            raise wrong("data.root", f"one with enough images for a {part} set", "too few in every class")
    return Dataset(name, classes, IMAGENET, train, validation, test, shifts or {}, cut_from_train=cut)
