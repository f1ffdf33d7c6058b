"""Camelyon17, iWildCam and FMoW from the extracted folders of the WILDS benchmark (Koh et al., ICML 2021).

Splits and classes come from the metadata files. `id_val` is the validation set and `test` the shift; the shifted `val`
is reported beside it. The in-distribution test set is `id_test`; Camelyon17 has none, and `id_val` stands for it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shiftcal._errors import wrong
from shiftcal.data.dataset import Dataset
from shiftcal.data.files.images import Fit
from shiftcal.data.files.read import Loader, read_split
from shiftcal.data.sources.folders import IMAGENET
from shiftcal.data.split import ImageSplit

Rows = Sequence[Mapping[str, str]]
Samples = list[tuple[str, int, str]]  # file, class and split of each image
Classes = tuple[str, ...]
_NEEDED = ("train", "id_val", "val", "test")


@dataclass(frozen=True)
class _Layout:
    """What the three sets differ in: folder, metadata file and its columns, and how the rows are read."""

    name: str
    folder: str
    metadata: str
    columns: tuple[str, ...]
    read: Callable[[Path, Rows], tuple[Classes, Samples]]


def camelyon17(root: str | Path, *, loader: Loader = "auto", progress: bool = True) -> Dataset:
    """Load Camelyon17: tissue with and without a tumour; training and test images are from different hospitals."""
    return _load(_CAMELYON17, Path(root), None, "stretch", loader, progress)


def iwildcam(
    root: str | Path, *, size: int = 448, fit: Fit = "stretch", loader: Loader = "auto", progress: bool = True
) -> Dataset:
    """Load iWildCam: 182 kinds of animals; training and test images are from different cameras."""
    return _load(_IWILDCAM, Path(root), size, fit, loader, progress)


def fmow(
    root: str | Path, *, size: int = 224, fit: Fit = "stretch", loader: Loader = "auto", progress: bool = True
) -> Dataset:
    """Load FMoW: 62 kinds of land use in satellite images; test images are of later years than training images."""
    return _load(_FMOW, Path(root), size, fit, loader, progress)


def _camelyon17(_: Path, rows: Rows) -> tuple[Classes, Samples]:
    by_hospital, else_by_split = {"1": "val", "2": "test"}, {"0": "train", "1": "id_val"}
    samples = []
    for row in rows:
        node = f"patient_{row['patient']}_node_{row['node']}"
        file = f"patches/{node}/patch_{node}_x_{row['x_coord']}_y_{row['y_coord']}.png"
        split = by_hospital.get(row["center"]) or else_by_split.get(row["split"], "")
        samples.append((file, int(row["tumor"]), split))
    return ("normal", "tumor"), samples


def _iwildcam(root: Path, rows: Rows) -> tuple[Classes, Samples]:
    samples = [(f"train/{row['filename']}", int(row["y"]), row["split"]) for row in rows]
    path = root / "categories.csv"
    names = {row["y"]: row["name"] for row in _rows(path, ("y", "name"))} if path.is_file() else {}
    numbers = map(str, range(1 + max(target for _, target, _ in samples)))
    return tuple(names.get(number, number) for number in numbers), samples


def _fmow(_: Path, rows: Rows) -> tuple[Classes, Samples]:
    """Divide by time: up to 2012, 2013–2015 (shifted validation), from 2016 on (shifted test)."""
    classes = tuple(sorted({row["category"] for row in rows}))
    index = {name: k for k, name in enumerate(classes)}
    early = {"train": "train", "val": "id_val", "test": "id_test"}
    samples = []
    for number, row in enumerate(rows):
        year, split = int(row["timestamp"][:4]), row["split"]
        late = {"val": "val"} if year < 2016 else {"test": "test"}
        part = (early if year < 2013 else late).get(split, "")  # "seq", sequestered images, are in no split
        samples.append((f"images/rgb_img_{number}.png", index[row["category"]], part))
    return classes, samples


_CAMELYON17 = _Layout(
    "camelyon17",
    "camelyon17_v1.0",
    "metadata.csv",
    ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split"),
    _camelyon17,
)
_IWILDCAM = _Layout("iwildcam", "iwildcam_v2.0", "metadata.csv", ("filename", "y", "split"), _iwildcam)
_FMOW = _Layout("fmow", "fmow_v1.1", "rgb_metadata.csv", ("split", "category", "timestamp"), _fmow)


def _load(layout: _Layout, root: Path, size: int | None, fit: Fit, loader: Loader, progress: bool) -> Dataset:
    root = _root(layout, root)
    rows = _rows(root / layout.metadata, layout.columns)
    try:
        classes, samples = layout.read(root, rows)
    except ValueError as error:
        raise wrong(layout.metadata, "the one of the WILDS release", f"{root / layout.metadata}: {error}") from None
    _check_files(root, layout.metadata, [file for file, _, part in samples if part])

    def split(name: str) -> ImageSplit:
        chosen = [(root / file, target) for file, target, part in samples if part == name]
        if not chosen:
            raise wrong(layout.metadata, f"one with images of the splits {', '.join(_NEEDED)}", f"none of {name}")
        files, targets = zip(*chosen, strict=True)
        title = f"{layout.name} {name}"
        return read_split(files, targets, size=size, fit=fit, loader=loader, title=title, progress=progress)

    validation = split("id_val")
    has_test = any(part == "id_test" for _, _, part in samples)
    return Dataset(
        name=layout.name,
        classes=classes,
        preprocess=IMAGENET,
        train=split("train"),
        validation=validation,
        test=split("id_test") if has_test else validation,
        shifts={"test": (split("test"),)},
        other_tests={"val": split("val")},
    )


def _root(layout: _Layout, root: Path) -> Path:
    for place in (root, root / layout.folder):
        if (place / layout.metadata).is_file():
            return place
    found = ", ".join(sorted(p.name for p in root.iterdir())[:8]) if root.is_dir() else "no such folder"
    raise wrong("data.root", f"a folder with {layout.metadata} ({layout.folder} of WILDS)", f"{root}: {found}")


def _rows(path: Path, columns: tuple[str, ...]) -> Rows:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                found = f"{path} with {', '.join(reader.fieldnames or ()) or 'nothing'}"
                raise wrong(path.name, f"one with the columns {', '.join(columns)}", found)
            rows = [{name: row[name] for name in columns} for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise wrong(path.name, "a CSV file in UTF-8", f"{path}: {error}") from None
    if not rows or any(value is None for row in rows for value in row.values()):
        raise wrong(path.name, "one with whole rows", f"{path}: {'no rows' if not rows else 'a row cut off'}")
    return rows


def _check_files(root: Path, metadata: str, files: Sequence[str]) -> None:
    """Raise if files that the metadata name are missing; each folder is listed once, not each file looked up."""
    there = {str(p) for p in {Path(file).parent for file in files}}
    there = {f"{folder}/{p.name}" for folder in there if (root / folder).is_dir() for p in (root / folder).iterdir()}
    missing = [file for file in files if file not in there]
    if missing:
        raise wrong(metadata, "one whose images are all there", f"{len(missing)} images missing, first {missing[0]}")
