"""Evaluation: one model on the clean test set and on every shift of it, before and after temperature scaling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from shiftcal import _ranks
from shiftcal._progress import Progress
from shiftcal.augment import augmix
from shiftcal.calibrators import TemperatureScaling
from shiftcal.corruptions import SEVERITIES, corrupt, frost_source, named
from shiftcal.data.corrupted import load_corrupted, manifest_of
from shiftcal.data.dataset import AnySplit, Dataset, Split
from shiftcal.metrics import CalibrationMeter, adaptive_ece, smooth_ece
from shiftcal.metrics.binning import bin_sums, top_label

HISTOGRAM = 100  # steps of confidence


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    *,
    corruptions: Sequence[str] = (),
    constants: str = "cifar",
    frost: str | None = None,
    corrupted: str | Path | None = None,
    bins: int = 15,
    temperatures: Sequence[str] = ("clean", "shift_aware"),
    temperature_criterion: Literal["nll", "ece"] = "nll",
    histograms: bool = True,
    batch_size: int = 500,
    progress: bool = True,
) -> dict[str, Any]:
    """Measure a model on a data set's test images, clean and shifted.

    Temperatures are fitted on the validation images and applied to every test set: "clean" on the images as they are,
    "shift_aware" on these and AugMix views of several strengths together, so that no test corruption and no data of
    the target are seen. Shifts are the data set's own and the named corruptions, each at five severities.

    Args:
        model: Takes normalised images, returns logits.
        dataset: Validation and test images, and shifts of its own.
        corruptions: Names in `CORRUPTIONS` and `EXTRA_CORRUPTIONS`; ("all",) is the 15 of the benchmark.
        constants: Whose severities, see `corrupt`.
        frost: Where frost's photographs come from, see `corrupt`.
        corrupted: A folder with the corrupted sets on disk, published or written by `shiftcal corrupt`, to be read
            instead of being made on the fly.
        bins: Number of bins.
        temperatures: Which temperatures to fit: "clean", or "clean" and "shift_aware".
        temperature_criterion: What temperature scaling minimises on the validation images.
        histograms: Whether each row tells in 100 steps of confidence how many predictions were right and wrong.
        batch_size: Images at a time.
        progress: Show progress.

    Returns:
        Plain data, all metrics as fractions. Rows, `validation`, `id` (clean test set), one for each shift and severity
        in `shifts`, and further test sets by name in `besides`, have `n`, the metrics, the `bins`, `ece_ts`, and in
        `scaled` metrics and bins after each temperature. `shifted` is the mean over the shifts; `temperature` is the
        clean one, `temperatures` has all that were fitted; `reliability` and `class_reliability` have the bins of `id`
        and of all shifts together, the latter by class; `corruptions` tells where the corrupted images came from.
    """
    corruptions = named(corruptions)
    total = 2 + len(dataset.besides) + sum(map(len, dataset.shifts.values())) + len(SEVERITIES) * len(corruptions)
    total += len(STRENGTHS) if "shift_aware" in temperatures else 0
    with Progress("evaluate", total, enabled=progress and _ranks.rank() == 0) as bar:
        logits, targets = predict(model, dataset, dataset.validation, batch_size)
        bar.advance()
        seen = {"clean": (logits, targets)}
        for strength in STRENGTHS if "shift_aware" in temperatures else ():
            view = Augmented(dataset.validation, strength)
            seen[f"augmix {strength:g}"] = predict(model, dataset, view, batch_size)
            bar.advance()
        fitted = fit_temperatures(seen, temperature_criterion)
        scalings = {name: fitted[name] for name in temperatures}
        validation, _ = _measure(logits, targets, scalings, bins, histograms)

        def measure(split: AnySplit | Shifted) -> tuple[dict[str, Any], CalibrationMeter]:
            result = _measure(*predict(model, dataset, split, batch_size), scalings, bins, histograms)
            bar.advance()
            return result

        clean, clean_meter = measure(dataset.test)
        besides = {name: measure(split)[0] for name, split in dataset.besides.items()}
        rows: list[dict[str, Any]] = []
        pooled = CalibrationMeter(len(dataset.classes), bins)
        for shift, severity, split in shifted_splits(dataset, corruptions, constants, frost=frost, corrupted=corrupted):
            metrics, meter = measure(split)
            rows.append({"shift": shift, "severity": severity, **metrics})
            pooled.merge(meter)
        bar.line(f"{len(rows)} shifted test sets")
    return {
        "temperature": scalings["clean"].temperature,
        "temperatures": {name: scaling.temperature for name, scaling in fitted.items()},
        "validation": validation,
        "id": clean,
        "id_is_validation": dataset.test is dataset.validation,
        "shifted": _mean(rows) if rows else None,
        "shifts": rows,
        "besides": besides,
        "corruptions": _origin(corruptions, constants, frost, corrupted),
        "reliability": {"id": clean_meter.reliability(), "shifted": pooled.reliability() if rows else None},
        "class_reliability": {
            "id": clean_meter.class_reliability(),
            "shifted": pooled.class_reliability() if rows else None,
        },
    }


def fit_temperatures(
    seen: dict[str, tuple[Tensor, Tensor]], criterion: Literal["nll", "ece"]
) -> dict[str, TemperatureScaling]:
    """Fit a temperature to each set of validation logits, and "shift_aware" to all together, if there are several."""
    pairs = dict(seen)
    if len(seen) > 1:
        logits, targets = zip(*seen.values(), strict=True)
        pairs["shift_aware"] = (torch.cat(logits), torch.cat(targets))
    return {name: TemperatureScaling(criterion).fit(*pair) for name, pair in pairs.items()}


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Average the numbers of rows, also those after each temperature."""
    names = [name for name, value in rows[0].items() if isinstance(value, float)]
    mean: dict[str, Any] = {name: sum(row[name] for row in rows) / len(rows) for name in names}
    if "scaled" in rows[0]:
        mean["scaled"] = {name: _mean([row["scaled"][name] for row in rows]) for name in rows[0]["scaled"]}
    return mean


@dataclass(frozen=True)
class Corrupted:
    """A test set whose images are corrupted as they are asked for, on the device they go to."""

    split: AnySplit
    name: str
    severity: int
    constants: str
    frost: str | None

    def to(self, device: torch.device | str) -> Corrupted:
        """Corrupt on a device."""
        return Corrupted(self.split.to(device), self.name, self.severity, self.constants, self.frost)

    def parts(self, size: int, first: int = 0, every: int = 1) -> Iterator[tuple[Tensor, Split]]:
        """Go through the samples in order; an image's corruption depends on its index, not on its batch."""
        for index, part in self.split.parts(size, first, every):
            images = corrupt(
                part.images,
                self.name,
                self.severity,
                constants=self.constants,
                indices=index.to(part.images.device),
                frost=self.frost,
            )
            yield index, Split(images, part.targets)


@dataclass(frozen=True)
class Augmented:
    """Images of a set as AugMix views of some strength, made as they are asked for, on the device they go to."""

    split: AnySplit
    strength: float

    def to(self, device: torch.device | str) -> Augmented:
        """Augment on a device."""
        return Augmented(self.split.to(device), self.strength)

    def parts(self, size: int, first: int = 0, every: int = 1) -> Iterator[tuple[Tensor, Split]]:
        """Go through the samples in order; what is drawn depends on the part, not on who asks for it."""
        for index, part in self.split.parts(size, first, every):
            device = part.images.device
            generator = torch.Generator(device).manual_seed(1000 * int(index[0]) + round(10 * self.strength))
            views = augmix(part.images, generator, views=1, severity=self.strength)[0]
            yield index, Split(views.round().to(torch.uint8), part.targets)


Shifted = Corrupted | Augmented
# AugMix severities of the validation images that the shift-aware temperature sees.
STRENGTHS = (1.0, 3.0, 5.0, 10.0)


def shifted_splits(
    dataset: Dataset,
    corruptions: Sequence[str],
    constants: str,
    *,
    frost: str | None = None,
    corrupted: str | Path | None = None,
) -> Iterator[tuple[str, int, AnySplit | Corrupted]]:
    """Yield the data set's own shifts, then the corruptions of its test images, by name and severity."""
    for name, splits in dataset.shifts.items():
        for severity, split in enumerate(splits, start=1):
            yield name, severity, split
    for name in corruptions:
        for severity in SEVERITIES:
            if corrupted is None:
                yield name, severity, Corrupted(dataset.test, name, severity, constants, frost)
                continue
            yield (
                name,
                severity,
                load_corrupted(corrupted, name, severity, classes=dataset.classes, size=len(dataset.test)),
            )


def _origin(
    corruptions: Sequence[str], constants: str, frost: str | None, corrupted: str | Path | None
) -> dict[str, Any]:
    """Tell where corrupted images come from: made here, or read from a folder whose manifest may tell more."""
    if corrupted is not None:
        manifest = manifest_of(Path(corrupted))
        made = {key: manifest.get(key) for key in ("constants", "frost")}
        return {**made, "read_from": Path(corrupted).name}
    return {
        "constants": constants,
        "frost": frost_source(frost) if "frost" in corruptions else None,
        "read_from": None,
    }


def predict(
    model: nn.Module, dataset: Dataset, split: AnySplit | Shifted, batch_size: int
) -> tuple[Float[Tensor, "n classes"], Int[Tensor, " n"]]:
    """Return a model's logits for stored images and their classes, in evaluation mode, on the model's device.

    Of several processes each goes through its share of the images, and all get the result.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    found: list[tuple[int, Tensor, Tensor]] = []
    try:
        with torch.inference_mode():
            for index, part in split.to(device).parts(batch_size, _ranks.rank(), _ranks.world()):
                logits = model(dataset.normalise(part.images)).float()
                found.append((int(index[0]), logits, part.targets))
    finally:
        model.train(training)
    if _ranks.several():
        moved = [(first, logits.cpu(), targets.cpu()) for first, logits, targets in found]
        found = sorted((part for parts in _ranks.gather_objects(moved) for part in parts), key=lambda part: part[0])
    return torch.cat([part[1] for part in found]).to(device), torch.cat([part[2] for part in found]).to(device)


def _measure(
    logits: Tensor, targets: Tensor, scalings: Mapping[str, TemperatureScaling], bins: int, histogram: bool
) -> tuple[dict[str, Any], CalibrationMeter]:
    logits = logits.double()  # in which even a very sure model leaves the true class a probability above 0
    row, meter = _metrics(logits.softmax(-1), targets, bins)
    scaled = {name: _metrics(scaling(logits).softmax(-1), targets, bins)[0] for name, scaling in scalings.items()}
    row |= {"n": len(targets), "ece_ts": scaled["clean"]["ece"], "scaled": scaled}
    if histogram:
        sums = bin_sums(*top_label(logits.softmax(-1), targets), HISTOGRAM)
        right = sums.hits.long()
        row["histogram"] = {"right": right.tolist(), "wrong": (sums.count.long() - right).tolist()}
    return row, meter


def _metrics(probabilities: Tensor, targets: Tensor, bins: int) -> tuple[dict[str, Any], CalibrationMeter]:
    meter = CalibrationMeter(probabilities.shape[1], bins)
    meter.update(probabilities, targets)
    more = {
        "adaptive_ece": adaptive_ece(probabilities, targets, bins=bins),
        "smooth_ece": smooth_ece(probabilities, targets),
        "bins": meter.reliability(),
    }
    return meter.compute() | more, meter
