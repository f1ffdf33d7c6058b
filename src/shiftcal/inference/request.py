"""What a user asks of a model, and how images become its input. `audit`, `predict` and `export` share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shiftcal._errors import DataError, wrong
from shiftcal.auditing.predictors import Outputs
from shiftcal.data.dataset import Dataset
from shiftcal.data.files.images import Crop, Fit
from shiftcal.inference.open_model import Opened, open_model


@dataclass(frozen=True)
class Wanted:
    """A model and what a user says of it and of its images; see `shiftcal audit --help`."""

    model: str
    data: str | None = None
    network: str | None = None
    weights: str | None = None
    validation: Path | None = None
    shifts: Mapping[str, Path] = field(default_factory=dict)
    outputs: Outputs | None = None
    classes: Path | None = None
    size: int | None = None
    resize: int | None = None
    interpolation: str | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    corruptions: tuple[str, ...] = ("all",)
    constants: str | None = None
    frost: str | None = None
    bins: int = 15
    batch_size: int = 500
    device: str = "auto"
    trust: bool = False


def read_names(path: Path) -> tuple[str, ...]:
    """Read class names, one a line, in the order of a model's outputs."""
    if not path.is_file():
        raise wrong("classes", "a file with a name on each line", str(path))
    names = tuple(line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip())
    if len(set(names)) < len(names) or len(names) < 2:
        raise DataError("classes", "two or more different names, one on each line", f"{path} with {len(names)}")
    return names


def open_wanted(wanted: Wanted) -> tuple[Opened, tuple[str, ...] | None]:
    """Open the model; returns the names of its outputs too, if they are known."""
    names = read_names(wanted.classes) if wanted.classes is not None else None
    opened = open_model(
        wanted.model,
        network=wanted.network,
        weights=wanted.weights,
        trust=wanted.trust,
        classes=len(names) if names else None,
    )
    return opened, names or opened.classes


def decide_preprocessing(wanted: Wanted, opened: Opened, dataset: Dataset | None) -> dict[str, Any]:
    """Decide how images become the model's input: what the user says first, then the model, then the data set."""
    asked = {
        "mean": wanted.mean,
        "std": wanted.std,
        "size": wanted.size,
        "resize": wanted.resize,
        "interpolation": wanted.interpolation,
    }
    known = dict(opened.known)
    if wanted.resize is not None and (wanted.size or known.get("size")) is None:
        raise wrong("resize", "given with --size, the pixels that are cut out", wanted.resize)
    if dataset is not None and (wanted.resize or wanted.interpolation):
        raise wrong("resize", "left out, with --interpolation, for images that are not files of a folder", "given")
    if dataset is not None:  # images in memory are resized bilinearly
        known = {key: value for key, value in known.items() if key not in ("resize", "interpolation")}
        own = {"mean": dataset.preprocess.mean, "std": dataset.preprocess.std}
        known = own | known
    known |= {key: value for key, value in asked.items() if value not in (None, ())}
    missing = [f"--{key}" for key in ("mean", "std") if key not in known]
    if missing:
        expected = f"given ({' and '.join(missing)}): a wrong normalisation moves the result silently"
        raise wrong("preprocessing", expected, "a model that does not tell (ImageNet's: --mean 0.485,0.456,0.406)")
    for key in ("mean", "std"):
        known[key] = tuple(float(value) for value in known[key])
        if len(known[key]) != 3:
            raise wrong(key, "three numbers, one for each channel", known[key])
    if dataset is not None and "input_size" not in known and known.get("size"):
        known["input_size"] = known.pop("size")  # images in memory are brought to it
    if dataset is None and known.get("size") and not known.get("resize"):
        if wanted.interpolation is not None:
            raise wrong("interpolation", "given with --resize, which it is for", wanted.interpolation)
        known["fit"] = known.get("fit") or "crop"
    return known


def shown(known: Mapping[str, Any]) -> dict[str, Any]:
    """List what is known of a preprocessing, as plain data."""
    order = ("size", "resize", "interpolation", "fit", "input_size", "mean", "std")
    return {key: list(known[key]) if isinstance(known[key], tuple) else known[key] for key in order if key in known}


def fit_of(known: Mapping[str, Any]) -> Fit:
    """Return how files become square images."""
    if known.get("size") and known.get("resize"):
        return Crop(int(known["resize"]), known.get("interpolation") or "bilinear")
    fit: Fit = known.get("fit") or "crop"
    return fit
