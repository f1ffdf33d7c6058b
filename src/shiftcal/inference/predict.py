"""`shiftcal predict`: a folder of images to a table of labels with calibrated confidence."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shiftcal._errors import DataError, ImageError, wrong
from shiftcal._io import replacing
from shiftcal._progress import Progress
from shiftcal.data.files.images import image_size
from shiftcal.data.files.listing import list_images
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import FileSplit, ImageSplit
from shiftcal.experiments.environment import resolve_device
from shiftcal.inference.classifier import Classifier, open_classifier, own_calibrator
from shiftcal.inference.request import Wanted, fit_of

FORMATS = (".csv", ".parquet")
_FEW = 200  # files below which starting processes that decode takes longer than decoding

Columns = dict[str, list[Any]]
Write = Callable[[Columns], None]


@dataclass(frozen=True)
class Predicted:
    """How many images have a row, how many could not be read, the calibrator's kind, and notes for the user."""

    images: int
    unreadable: int
    calibrator: str | None
    notes: tuple[str, ...]


def predict_folder(
    wanted: Wanted,
    folder: Path,
    out: Path,
    *,
    calibrator: Path | None = None,
    every_class: bool = False,
    progress: bool = True,
) -> Predicted:
    """Write a row for each image of a folder: its file, its label and how sure the model is.

    Args:
        wanted: The model, and how images become its input.
        folder: Images, in any layout.
        out: A `.csv` or `.parquet` file, which is replaced once it is complete.
        calibrator: What `shiftcal audit --calibrate` wrote; by default the one in the model's folder, if there is one.
        every_class: Add the probability of every class.
        progress: Show progress.
    """
    check_table(out)
    files = list_images(folder)
    classifier = open_classifier(wanted, calibrator or own_calibrator(wanted.model))
    split, notes = split_of_files(files, classifier.known)
    done = 0
    with (
        Progress("predict", len(files), enabled=progress) as bar,
        replacing(out) as temporary,
        _table(temporary, out.suffix) as write,
    ):
        for index, probabilities in probabilities_of(classifier, split, wanted.batch_size, wanted.device):
            names = [files[place].relative_to(folder) for place in index.tolist()]
            write(_columns(names, probabilities, classifier, every_class))
            done += len(index)
            bar.advance(int(index[-1]) + 1 - bar.done)
        if not done:
            raise DataError("images", "at least one that can be read", f"none in {folder}")
        bar.line(f"{done} images")
    return Predicted(done, len(files) - done, classifier.calibrator, (*classifier.notes, *notes))


def split_of_files(files: Sequence[Path], known: Mapping[str, Any]) -> tuple[FileSplit, list[str]]:
    """Return files as a split that gives images as a model takes them, with notes for the user."""
    notes = []
    if known.get("size") is None:
        shape = _one_size(files)
        if "input_size" not in known:
            notes.append(f"the model does not tell the size of its images: they stay as they are, {shape} (--size N)")
    nothing = torch.zeros(len(files), dtype=torch.int64)
    workers = 0 if len(files) < _FEW else None
    return FileSplit(tuple(files), nothing, known.get("size"), fit_of(known), workers=workers), notes


def probabilities_of(
    classifier: Classifier, split: ImageSplit, batch_size: int, device: str = "auto"
) -> Iterator[tuple[Tensor, Tensor]]:
    """Go through a split: indices of images, and their probabilities; images that cannot be read are left out."""
    known, place = classifier.known, resolve_device(device)
    module = classifier.module.to(place)
    preprocess = Preprocessing(known["mean"], known["std"], known.get("input_size"))
    for index, part in split.to(place).parts(batch_size):
        with torch.inference_mode():
            probabilities = _finite(module(preprocess(part.images)).cpu())
        classifier.check_width(probabilities.shape[1])
        yield index, probabilities


def check_table(path: Path) -> None:
    """Raise unless a table can be written: its name tells a format whose package is installed."""
    if path.suffix not in FORMATS:
        raise wrong("out", f"a file that ends in {' or '.join(FORMATS)}", str(path))
    if not path.parent.is_dir():
        raise wrong("out", "a file in a folder that exists", str(path))
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise wrong("out", "a .csv file, or pyarrow installed (pip install 'shiftcal[parquet]')", str(path))


def _one_size(files: Sequence[Path]) -> str:
    """Return the one size that all images have; others are an error, where a model does not tell what it takes."""
    sizes: dict[tuple[int, int], Path] = {}
    for file in files:
        try:
            sizes.setdefault(image_size(file), file)
        except ImageError:  # named when it is read
            continue
        if len(sizes) > 1:
            found = " and ".join(f"{path} of {height} × {width}" for (height, width), path in sizes.items())
            raise DataError("images", "of one size (--size N brings them to one)", found)
    return " × ".join(map(str, next(iter(sizes), ("unknown",))))


def _finite(probabilities: Tensor) -> Tensor:
    if bad := int((~probabilities.isfinite()).any(1).sum()):
        raise DataError("model", "one that gives numbers", f"NaN or infinity for {bad} of {len(probabilities)} images")
    return probabilities


def _columns(files: Sequence[Path], probabilities: Tensor, classifier: Classifier, every_class: bool) -> Columns:
    confidence, label = probabilities.max(1)
    names: Sequence[Any] = classifier.classes or range(probabilities.shape[1])
    columns: Columns = {
        "file": [file.as_posix() for file in files],
        "label": [names[place] for place in label.tolist()],
        "confidence": confidence.tolist(),
    }
    if every_class:
        columns |= {f"probabilities_{k}": column.tolist() for k, column in enumerate(probabilities.T)}
    return columns


@contextmanager
def _table(path: Path, suffix: str) -> Iterator[Write]:
    with (_csv if suffix == ".csv" else _parquet)(path) as write:
        yield write


@contextmanager
def _csv(path: Path) -> Iterator[Write]:
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer, started = csv.writer(file), False

        def write(columns: Columns) -> None:
            nonlocal started
            if not started:
                writer.writerow(columns)
                started = True
            for row in zip(*columns.values(), strict=True):
                writer.writerow([f"{value:.7g}" if isinstance(value, float) else value for value in row])

        yield write


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    import pyarrow
    from pyarrow import parquet

    writer: Any = None

    def write(columns: Columns) -> None:
        nonlocal writer
        columns["file"] = [os.fsencode(name).decode("utf-8", "replace") for name in columns["file"]]
        floats = {name: pyarrow.array(v, pyarrow.float32()) for name, v in columns.items() if isinstance(v[0], float)}
        table = pyarrow.table(columns | floats)
        if writer is None:
            writer = parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
