"""Data: where images come from, by name."""

from __future__ import annotations

from collections.abc import Callable

from shiftcal._checks import unknown
from shiftcal.data.dataset import Dataset, Split
from shiftcal.data.shapes import shapes

DATASETS: dict[str, Callable[..., Dataset]] = {"shapes": shapes}


def load(name: str, **options: object) -> Dataset:
    """Load a data set by name; the options are those of its function.

    Example:
        >>> load("shapes", train=8, validation=8, test=8).classes[0]
        'disc'
    """
    if name not in DATASETS:
        raise unknown("name", name, DATASETS)
    return DATASETS[name](**options)


__all__ = ["DATASETS", "Dataset", "Split", "load", "shapes"]
