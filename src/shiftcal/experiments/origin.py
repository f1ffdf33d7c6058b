"""What a checkpoint knows of data: its classes, matched by name, and whether it was trained on the same split."""

from __future__ import annotations

from pathlib import Path

from shiftcal import models
from shiftcal._errors import wrong
from shiftcal.data.dataset import Dataset
from shiftcal.data.match import match_classes
from shiftcal.experiments.config import Config
from shiftcal.records import RECORD, WEIGHTS, read_record


def classes_of(checkpoint: Path) -> tuple[str, ...] | None:
    """Read the names of a checkpoint's classes: from the weights of a run or of a file, else from the run's record."""
    weights = checkpoint / WEIGHTS if checkpoint.is_dir() else checkpoint
    named = models.class_names(weights)
    if named is None and (checkpoint / RECORD).is_file():
        data = read_record(checkpoint / RECORD).data
        return (data.classes or None) if data is not None else None
    return named


def matched(config: Config, dataset: Dataset, checkpoint: Path) -> Dataset:
    """Give a data set the classes and the indices of a checkpoint, if that names its classes."""
    known = classes_of(checkpoint)
    if known is None or known == dataset.classes:
        return dataset
    own = config.evaluation
    if own.corrupted is not None and own.corruptions and (Path(own.corrupted) / "labels.npy").is_file():
        expected = "a tree of class folders, where the data has other classes or another order than the checkpoint"
        raise wrong("evaluation.corrupted", expected, f"{own.corrupted}, whose labels.npy has indices alone")
    return match_classes(dataset, known)


def held_out_the_same(checkpoint: Path, config: Config) -> bool:
    """Tell whether a checkpoint is a run that had the same data, split by the same seed, and so is what it is from."""
    if not (checkpoint / RECORD).is_file():
        return False
    theirs, mine = read_record(checkpoint / RECORD).config, config.to_dict()["data"]
    if any(theirs["data"].get(key) != mine.get(key) for key in ("name", "root", "seed", "holdout")):
        return False
    earlier = theirs.get("finetuned_from")
    return earlier is None or held_out_the_same(Path(earlier), config)
