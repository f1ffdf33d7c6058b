"""Data: where images come from, by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shiftcal._checks import unknown, wrong
from shiftcal.data.cifar import cifar10, cifar100
from shiftcal.data.dataset import AnySplit, Dataset, FileSplit, Split
from shiftcal.data.folders import domains, folder
from shiftcal.data.loader import MixedEpoch, ResidentEpoch, Samples
from shiftcal.data.shapes import shapes
from shiftcal.data.stream import StreamedEpoch
from shiftcal.data.tiny_imagenet import tiny_imagenet
from shiftcal.data.wilds import camelyon17, fmow, iwildcam
from shiftcal.filtering import LowPassPolicy

DATASETS: dict[str, Callable[..., Dataset]] = {
    "shapes": shapes,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny-imagenet": tiny_imagenet,
    "camelyon17": camelyon17,
    "iwildcam": iwildcam,
    "fmow": fmow,
    "office-home": partial(domains, name="office-home"),
    "pacs": partial(domains, name="pacs"),
    "folder": folder,
}

BY_PATH = ("folder",)  # these have no place of their own


def load(name: str, **options: object) -> Dataset:
    """Load a data set by name; the options are those of its function.

    Without `root`, data sets from disk are looked for where `shiftcal data prepare` puts them.

    Example:
        >>> load("shapes", train=8, validation=8, test=8).classes[0]
        'disc'
    """
    if name not in DATASETS:
        raise unknown("name", name, DATASETS)
    if "root" in options_of(name) and options.get("root") is None:
        options["root"] = _default_root(name)
    return DATASETS[name](**options)


def mixed_epoch(split: Samples, *, policy: LowPassPolicy, seed: int, epoch: int) -> MixedEpoch:
    """Make one epoch of D_mix with the loader that a set needs: from memory, or from disk."""
    kind = StreamedEpoch if isinstance(split, FileSplit) else ResidentEpoch
    return kind(split, policy=policy, seed=seed, epoch=epoch)


def options_of(name: str) -> Mapping[str, inspect.Parameter]:
    """List what a data set's function takes."""
    if name not in DATASETS:
        raise unknown("data.name", name, DATASETS)
    return inspect.signature(DATASETS[name]).parameters


def home() -> Path:
    """Return the folder that holds a folder for each data set: `$SHIFTCAL_DATA`, or .shiftcal/data in the user's."""
    return Path(os.environ.get("SHIFTCAL_DATA") or Path.home() / ".shiftcal" / "data")


def _default_root(name: str) -> Path:
    root = home() / name
    if name in BY_PATH:
        raise wrong("data.root", "given: --set data.root=FOLDER", "nothing")
    if not root.exists():
        raise wrong(
            "data.root", f"the folder of {name} (`shiftcal data prepare {name}` puts it where it is found)", root
        )
    return root


__all__ = [
    "BY_PATH",
    "DATASETS",
    "AnySplit",
    "Dataset",
    "FileSplit",
    "Split",
    "home",
    "load",
    "mixed_epoch",
    "options_of",
    "shapes",
]
