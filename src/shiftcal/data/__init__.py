"""Data: where images come from, by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shiftcal._errors import wrong
from shiftcal._plugins import Registry
from shiftcal.data.dataset import Dataset
from shiftcal.data.epoch import Batch, MixedEpoch
from shiftcal.data.files.images import Crop
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.sources.cifar import cifar10, cifar100
from shiftcal.data.sources.folders import domains, folder
from shiftcal.data.sources.shapes import shapes
from shiftcal.data.sources.tiny_imagenet import tiny_imagenet
from shiftcal.data.sources.wilds import camelyon17, fmow, iwildcam
from shiftcal.data.split import FeatureSplit, FileSplit, ImageSplit, MemorySplit, Split

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
    "domains": domains,
    "folder": folder,
}

BY_PATH = ("domains", "folder")  # these have no place of their own


def load(name: str, **options: object) -> Dataset:
    """Load a data set, see `find`; the options are those of its function.

    Without `root`, data sets from disk are looked for where `shiftcal data prepare` puts them.

    Example:
        >>> load("shapes", train=8, validation=8, test=8).classes[0]
        'disc'
    """
    function = find(name)
    if name in DATASETS and "root" in options_of(name) and options.get("root") is None:
        options["root"] = _default_root(name)
    dataset = function(**options)
    if not isinstance(dataset, Dataset):
        expected = "the name of a function that returns a shiftcal.data.Dataset"
        raise wrong("data.name", expected, f"{name}, which returns a {type(dataset).__name__}")
    return dataset


def find(name: str) -> Callable[..., Dataset]:
    """Look a data set's function up: a name, one that a plugin or an entry point adds, or "package.module:function"."""
    return DATASETS[name] if name in DATASETS else ADDED.find(name)


def register(name: str, function: Callable[..., Dataset]) -> None:
    """Add a function that returns a `Dataset` and takes keys of `data`; for plugins, see `docs/plugins.md`."""
    ADDED.register(name, function)


ADDED: Registry[Callable[..., Dataset]] = Registry("data.name", "shiftcal.data", lambda: DATASETS, "function")


def options_of(name: str) -> Mapping[str, inspect.Parameter]:
    """List what a data set's function takes."""
    return inspect.signature(find(name)).parameters


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
    "ADDED",
    "BY_PATH",
    "DATASETS",
    "Batch",
    "Crop",
    "Dataset",
    "FeatureSplit",
    "FileSplit",
    "ImageSplit",
    "MemorySplit",
    "MixedEpoch",
    "Preprocessing",
    "Split",
    "find",
    "home",
    "load",
    "options_of",
    "register",
    "shapes",
]
