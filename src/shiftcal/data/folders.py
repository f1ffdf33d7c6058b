"""Anybody's folders of images: one set, or one for each domain."""

from __future__ import annotations

from pathlib import Path

import torch

from shiftcal._checks import unknown, wrong
from shiftcal.data.dataset import Dataset, Split
from shiftcal.data.images import Fit, Tree, find_images, read_split
from shiftcal.data.splits import hold_out

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_NAMES = {"train": ("train",), "validation": ("val", "validation", "valid"), "test": ("test",)}


def folder(
    root: str | Path, *, size: int | None = None, fit: Fit = "crop", seed: int = 0, progress: bool = True
) -> Dataset:
    """Load a user's images: `train/`, `val/` and `test/` with a folder for each class, or one such tree.

    What is missing is held out, seeded and of every class alike: one tree is split 80/10/10, a missing `val` is a tenth
    of `train`. Classes are those of the training images.
    """
    root = Path(root)
    parts = {part: next((root / n for n in names if (root / n).is_dir()), None) for part, names in _NAMES.items()}
    if parts["train"] is None:
        return _one_tree(root, size, fit, seed, progress)
    if parts["test"] is None:
        found = ", ".join(sorted(p.name for p in root.iterdir())[:8])
        raise wrong("data.root", "a folder with train/ and test/, or one tree of class folders", f"{root}: {found}")
    tree = find_images(parts["train"])
    train = _read(tree, size, fit, progress)
    test = _read(_same_classes(parts["test"], tree), size, fit, progress)
    if parts["validation"] is not None:
        validation = _read(_same_classes(parts["validation"], tree), size, fit, progress)
    else:
        held = hold_out(train.targets, share=0.1, seed=seed)
        train, validation = train.take(~held), train.take(held)
    return _dataset("folder", tree.classes, train, validation, test)


def domains(
    root: str | Path,
    *,
    holdout: str | None = None,
    name: str = "domains",
    size: int = 224,
    fit: Fit = "stretch",
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
    if holdout not in found:
        raise unknown("data.holdout", str(holdout), found)
    classes = find_images(root / holdout).classes
    sources = [_read(_of_classes(root / d, classes), size, fit, progress) for d in found if d != holdout]
    if not sources:
        raise wrong("data.root", "a folder with two domains or more", f"{root}: {', '.join(found)}")
    thirds = [_eighty_ten_ten(split, seed) for split in sources]
    train, validation, test = (_join([parts[k] for parts in thirds]) for k in range(3))
    shifted = _read(_of_classes(root / holdout, classes), size, fit, progress)
    return _dataset(name, classes, train, validation, test, shifts={holdout: (shifted,)})


def _one_tree(root: Path, size: int | None, fit: Fit, seed: int, progress: bool) -> Dataset:
    tree = find_images(root)
    return _dataset("folder", tree.classes, *_eighty_ten_ten(_read(tree, size, fit, progress), seed))


def _eighty_ten_ten(split: Split, seed: int) -> tuple[Split, Split, Split]:
    """Cut a set into training, validation and test images, of every class alike."""
    held = hold_out(split.targets, share=0.2, seed=seed)
    rest = split.take(held)
    second = hold_out(rest.targets, share=0.5, seed=seed + 1)
    return split.take(~held), rest.take(~second), rest.take(second)


def _same_classes(path: Path, train: Tree) -> Tree:
    """Find images; a class that the training images do not have is an error, one without images is not."""
    here = {p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")}
    if extra := sorted(here - set(train.classes)):
        raise wrong("data.root", "one whose classes are all in train/", f"{path} has {', '.join(extra[:3])} besides")
    return _of_classes(path, tuple(c for c in train.classes if c in here), train.classes)


def _of_classes(path: Path, present: tuple[str, ...], classes: tuple[str, ...] | None = None) -> Tree:
    tree, order = find_images(path, present), classes or present
    return Tree(tree.root, order, tree.files, tuple(order.index(present[t]) for t in tree.targets))


def _read(tree: Tree, size: int | None, fit: Fit, progress: bool) -> Split:
    return read_split(tree.files, tree.targets, size=size, fit=fit, title=tree.root.name, progress=progress)


def _join(splits: list[Split]) -> Split:
    return Split(torch.cat([s.images for s in splits]), torch.cat([s.targets for s in splits]))


def _dataset(
    name: str,
    classes: tuple[str, ...],
    train: Split,
    validation: Split,
    test: Split,
    shifts: dict[str, tuple[Split, ...]] | None = None,
) -> Dataset:
    for part, split in (("training", train), ("validation", validation), ("test", test)):
        if len(split) == 0:
            raise wrong("data.root", f"one with enough images for a {part} set", "too few in every class")
    return Dataset(name, classes, IMAGENET_MEAN, IMAGENET_STD, train, validation, test, shifts or {})
