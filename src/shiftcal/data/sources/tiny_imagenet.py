"""Tiny-ImageNet-200 in its own layout."""

from __future__ import annotations

from pathlib import Path

from shiftcal._errors import wrong
from shiftcal.data.dataset import Dataset
from shiftcal.data.files.listing import find_images
from shiftcal.data.files.read import Loader, read_split
from shiftcal.data.hold_out import hold_out
from shiftcal.data.sources.cifar import CIFAR


def tiny_imagenet(
    root: str | Path, *, loader: Loader = "auto", seed: int = 0, per_class: int = 50, progress: bool = True
) -> Dataset:
    """Load Tiny-ImageNet-200 (Le & Yang, 2015) from `train/<class>/images` and `val/val_annotations.txt`.

    Its labelled `val` is the test set, since the labels of `test` were never published; 50 training images of each
    class are held out for validation.
    """
    root = _root(Path(root))
    tree = find_images(root / "train")
    whole = read_split(tree.files, tree.targets, loader=loader, title="train", progress=progress)
    held = hold_out(whole.targets, per_class=per_class, seed=seed)
    files, labels = _annotated(root / "val", tree.classes)
    return Dataset(
        name="tiny-imagenet",
        classes=tree.classes,
        preprocess=CIFAR,
        train=whole.take(~held),
        validation=whole.take(held),
        test=read_split(files, labels, loader=loader, title="val", progress=progress),
        cut_from_train=("validation",),
    )


def _root(root: Path) -> Path:
    for place in (root, root / "tiny-imagenet-200"):
        if (place / "train").is_dir() and (place / "val" / "val_annotations.txt").is_file():
            return place
    raise wrong("data.root", "a folder with train/ and val/val_annotations.txt (tiny-imagenet-200)", str(root))


def _annotated(folder: Path, classes: tuple[str, ...]) -> tuple[list[Path], list[int]]:
    """Read which class each file has, from lines of file, class and box."""
    path, index = folder / "val_annotations.txt", {name: k for k, name in enumerate(classes)}
    files, labels = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if len(words) < 2 or words[1] not in index:
            raise wrong("val_annotations.txt", "lines of a file and its class", f"line {number}: {line[:80]!r}")
        files.append(folder / "images" / words[0])
        labels.append(index[words[1]])
    missing = [file.name for file in files if not file.is_file()]
    there = {file.name for file in (folder / "images").iterdir()} if (folder / "images").is_dir() else set()
    extra = sorted(there - {file.name for file in files})
    if missing or extra:
        found = f"{len(missing)} images missing, {len(extra)} without a label ({', '.join((missing + extra)[:3])})"
        raise wrong("val_annotations.txt", "a line for each image in val/images", found)
    return files, labels
