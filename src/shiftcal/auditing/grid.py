"""The grid over shifts: one model on the clean test set and on every shift of it, before and after calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from shiftcal import _distributed
from shiftcal._progress import Progress
from shiftcal.calibrators import TemperatureScaling
from shiftcal.data.dataset import Dataset
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import ImageSplit, first_of
from shiftcal.evaluation import Parts, Predictions, measure, predict
from shiftcal.metrics import CalibrationMeter
from shiftcal.records import Cell, Corruptions, Evaluation
from shiftcal.shifts.corruptions import SEVERITIES, frost_source, named
from shiftcal.shifts.lazy import Augmented, Corrupted
from shiftcal.shifts.read import check_corrupted, load_corrupted, manifest_of

# AugMix severities of the validation images that the shift-aware temperature sees.
STRENGTHS = (1.0, 3.0, 5.0, 10.0)


def nearest_constants(size: int) -> str:
    """Name the corruption constants made for images nearest to a size."""
    return "cifar" if size <= 45 else "tiny-imagenet" if size <= 120 else "imagenet"


@dataclass(frozen=True)
class ShiftGrid:
    """Which corruptions of the test images are measured, each at five severities, and where their images come from.

    Attributes:
        corruptions: Names in `CORRUPTIONS` and `EXTRA_CORRUPTIONS`; ("all",) is the 15 of the benchmark.
        constants: Whose severities, see `corrupt`.
        frost: Where frost's photographs come from, see `corrupt`.
        corrupted: A folder with the corrupted sets on disk, published or written by `shiftcal corrupt`, to be read
            instead of being made on the fly.
    """

    corruptions: Sequence[str] = ()
    constants: str = "cifar"
    frost: str | None = None
    corrupted: str | Path | None = None

    def splits(self, dataset: Dataset) -> Iterator[tuple[str, int, Parts]]:
        """Yield the data set's own shifts, then the corruptions of its test images, by name and severity."""
        for name, severity, split in self.cells(dataset.test, dataset.shifts, dataset.classes):
            yield name, severity or 1, split

    def cells(
        self, test: ImageSplit, shifts: Mapping[str, Sequence[ImageSplit]], classes: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, int | None, Parts]]:
        """Yield given shifts, then the corruptions of test images; a shift that comes once has no severity."""
        for name, splits in shifts.items():
            for severity, split in enumerate(splits, start=1):
                yield name, severity if len(splits) > 1 else None, split
        for name in named(self.corruptions):
            for severity in SEVERITIES:
                yield name, severity, self._corruption(test, classes, name, severity)

    def middle(self, dataset: Dataset) -> Iterator[Parts]:
        """Yield each shift once, at the middle one of its severities."""
        for splits in dataset.shifts.values():
            yield splits[(len(splits) - 1) // 2]
        for name in named(self.corruptions):
            yield self._corruption(dataset.test, dataset.classes, name, SEVERITIES[len(SEVERITIES) // 2])

    def names(self, dataset: Dataset) -> tuple[str, ...]:
        """Name the shifts."""
        return (*dataset.shifts, *named(self.corruptions))

    def check(self, dataset: Dataset) -> None:
        """Raise unless every corruption can be made of the test images, or is in the folder that has them."""
        self.check_images(dataset.test, dataset.classes)

    def check_images(self, test: ImageSplit, classes: tuple[str, ...] = ()) -> None:
        """Raise unless every corruption can be made of some images, or is in the folder that has them."""
        first = first_of(test, 1)
        for name in named(self.corruptions):
            if self.corrupted is not None:
                check_corrupted(self.corrupted, name, classes=classes, size=len(test))
            else:
                next(iter(Corrupted(first, name, SEVERITIES[-1], self.constants, self.frost).parts(1)))

    def count(self, dataset: Dataset) -> int:
        """Count the shifted test sets."""
        return sum(map(len, dataset.shifts.values())) + len(SEVERITIES) * len(named(self.corruptions))

    def _corruption(self, test: ImageSplit, classes: tuple[str, ...], name: str, severity: int) -> Parts:
        if self.corrupted is None:
            return Corrupted(test, name, severity, self.constants, self.frost)
        return load_corrupted(self.corrupted, name, severity, classes=classes, size=len(test))

    def origin(self) -> Corruptions:
        """Tell where corrupted images come from: made here, or read from a folder whose manifest may tell more."""
        if self.corrupted is not None:
            manifest = manifest_of(Path(self.corrupted))
            read_from = Path(self.corrupted).name
            return Corruptions(constants=manifest.get("constants"), frost=manifest.get("frost"), read_from=read_from)
        frost = frost_source(self.frost) if "frost" in named(self.corruptions) else None
        return Corruptions(constants=self.constants, frost=frost)


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    *,
    preprocess: Preprocessing | None = None,
    corruptions: Sequence[str] = (),
    constants: str = "cifar",
    frost: str | None = None,
    corrupted: str | Path | None = None,
    bins: int = 15,
    temperatures: Sequence[str] = ("clean", "shift_aware"),
    temperature_criterion: Literal["nll", "ece"] = "nll",
    histograms: bool = True,
    batch_size: int = 500,
    earlier: Evaluation | None = None,
    progress: bool = True,
) -> Evaluation:
    """Measure a model on a data set's test images, clean and shifted.

    Temperatures are fitted on the validation images and applied to every test set: "clean" on the images as they are,
    "shift_aware" on these and AugMix views of several strengths together, so that no test corruption and no data of
    the target are seen. Shifts are the data set's own and the named corruptions, each at five severities.

    Args:
        model: Takes preprocessed images, returns logits.
        dataset: Validation and test images, and shifts of its own.
        preprocess: What makes stored images the model's input; the data set's by default.
        corruptions: Names in `CORRUPTIONS` and `EXTRA_CORRUPTIONS`; ("all",) is the 15 of the benchmark.
        constants: Whose severities, see `corrupt`.
        frost: Where frost's photographs come from, see `corrupt`.
        corrupted: A folder with the corrupted sets on disk, published or written by `shiftcal corrupt`, to be read
            instead of being made on the fly.
        bins: Number of bins.
        temperatures: Which temperatures to fit: "clean", or "clean" and "shift_aware".
        temperature_criterion: What temperature scaling minimises on the validation images.
        histograms: Whether each cell tells in 100 steps of confidence how many predictions were right and wrong.
        batch_size: Images at a time.
        earlier: An evaluation of the same model. Its temperatures, as far as they are named, and its validation cell
            are taken over: nothing is fitted, and the validation images are not looked at.
        progress: Show progress.
    """
    grid = ShiftGrid(corruptions, constants, frost, corrupted)
    preprocess = preprocess or dataset.preprocess
    strengths = STRENGTHS if "shift_aware" in temperatures else ()
    total = 1 + (0 if earlier else 1 + len(strengths)) + len(dataset.other_tests) + grid.count(dataset)
    with Progress("evaluate", total, enabled=progress and _distributed.rank() == 0) as bar:

        def predicted(split: Parts) -> Predictions:
            found = predict(model, split, preprocess, batch_size=batch_size)
            bar.advance()
            return found

        seen = {} if earlier else {"clean": predicted(dataset.validation)}
        if not earlier:
            seen |= {f"augmix {s:g}": predicted(Augmented(dataset.validation, s)) for s in strengths}
        fitted = fixed_temperatures(earlier) if earlier else fit_temperatures(seen, temperature_criterion)
        scalings = {name: fitted[name] for name in temperatures if name in fitted}

        def measured(predictions: Predictions) -> tuple[dict[str, Any], CalibrationMeter]:
            return measure(predictions, bins=bins, scalings=scalings, histogram=histograms)

        validation = earlier.validation if earlier else measured(seen["clean"])[0]
        clean, clean_meter = measured(predicted(dataset.test))
        other_tests = {name: measured(predicted(split))[0] for name, split in dataset.other_tests.items()}
        shifts: list[dict[str, Any]] = []
        pooled = CalibrationMeter(len(dataset.classes), bins)
        for shift, severity, split in grid.splits(dataset):
            cell, meter = measured(predicted(split))
            shifts.append({"shift": shift, "severity": severity, **cell})
            pooled.merge(meter)
        bar.line(f"{len(shifts)} shifted test sets")
    return Evaluation.model_validate(
        {
            "temperatures": {name: scaling.temperature for name, scaling in fitted.items()},
            "validation": validation,
            "clean": clean,
            "clean_is_validation": dataset.test is dataset.validation,
            "shifts": shifts,
            "shifted": mean_of(shifts) if shifts else None,
            "other_tests": other_tests,
            "reliability": {
                "clean": clean_meter.reliability(),
                "clean_by_class": clean_meter.class_reliability(),
                "shifted": pooled.reliability() if shifts else None,
                "shifted_by_class": pooled.class_reliability() if shifts else (),
            },
            "corruptions": grid.origin(),
        }
    )


def fit_temperatures(
    seen: dict[str, Predictions], criterion: Literal["nll", "ece"] = "nll"
) -> dict[str, TemperatureScaling]:
    """Fit a temperature to each set of validation predictions, and "shift_aware" to all, if there are several."""
    sets = dict(seen)
    if len(seen) > 1:
        first, *others = seen.values()
        sets["shift_aware"] = sum(others, start=first)
    return {name: TemperatureScaling(criterion).fit(p.logits, p.targets) for name, p in sets.items()}


def fixed_temperatures(earlier: Evaluation) -> dict[str, TemperatureScaling]:
    """Return scalings with the temperatures that an earlier evaluation fitted."""
    scalings = {name: TemperatureScaling() for name in earlier.temperatures}
    for name, scaling in scalings.items():
        scaling.load_state_dict({"t": torch.tensor(earlier.temperatures[name], dtype=torch.float64)})
    return scalings


def mean_of(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average the metrics of cells, also those after each temperature."""
    names = [name for name in Cell.model_fields if isinstance(cells[0].get(name), float)]
    mean: dict[str, Any] = {name: sum(cell[name] for cell in cells) / len(cells) for name in names}
    if "scaled" in cells[0]:
        mean["scaled"] = {name: mean_of([cell["scaled"][name] for cell in cells]) for name in cells[0]["scaled"]}
    return mean
