"""Evaluation: one model on the clean test set and on every shift of it, before and after temperature scaling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from shiftcal import _ranks
from shiftcal._progress import Progress
from shiftcal.calibrators import TemperatureScaling
from shiftcal.corruptions import SEVERITIES, corrupt, frost_source, named
from shiftcal.data.corrupted import load_corrupted, manifest_of
from shiftcal.data.dataset import AnySplit, Dataset, Split
from shiftcal.metrics import CalibrationMeter, adaptive_ece, ece


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    *,
    corruptions: Sequence[str] = (),
    constants: str = "cifar",
    frost: str | None = None,
    corrupted: str | Path | None = None,
    bins: int = 15,
    temperature_criterion: Literal["nll", "ece"] = "nll",
    batch_size: int = 500,
    progress: bool = True,
) -> dict[str, Any]:
    """Measure a model on a data set's test images, clean and shifted.

    The temperature is fitted on the validation images and applied to every test set; `ece_ts` is the ECE after it.
    Shifts are the data set's own and the named corruptions, each at five severities.

    Args:
        model: Takes normalised images, returns logits.
        dataset: Validation and test images, and shifts of its own.
        corruptions: Names in `CORRUPTIONS` and `EXTRA_CORRUPTIONS`; ("all",) is the 15 of the benchmark.
        constants: Whose severities, see `corrupt`.
        frost: Where frost's photographs come from, see `corrupt`.
        corrupted: A folder with the corrupted sets on disk, published or written by `shiftcal corrupt`, to be read
            instead of being made on the fly.
        bins: Number of bins.
        temperature_criterion: What temperature scaling minimises on the validation images.
        batch_size: Images at a time.
        progress: Show progress.

    Returns:
        Plain data, all metrics as fractions: `temperature`; `validation` and `id` (clean test set); `shifts`, one row
        for each shift and severity; `shifted`, their mean; `besides`, further test sets by name; `reliability`, bins
        of `id` and of all shifts together; `corruptions`, where the corrupted images came from.
    """
    corruptions = named(corruptions)
    total = 2 + len(dataset.besides) + sum(map(len, dataset.shifts.values())) + len(SEVERITIES) * len(corruptions)
    with Progress("evaluate", total, enabled=progress and _ranks.rank() == 0) as bar:
        logits, targets = predict(model, dataset, dataset.validation, batch_size)
        scaling = TemperatureScaling(temperature_criterion).fit(logits, targets)
        validation, _ = _measure(logits, targets, scaling, bins)
        bar.advance()

        def measure(split: AnySplit | Corrupted) -> tuple[dict[str, float], CalibrationMeter]:
            result = _measure(*predict(model, dataset, split, batch_size), scaling, bins)
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
        "temperature": scaling.temperature,
        "validation": validation,
        "id": clean,
        "id_is_validation": dataset.test is dataset.validation,
        "shifted": {name: sum(row[name] for row in rows) / len(rows) for name in clean} if rows else None,
        "shifts": rows,
        "besides": besides,
        "corruptions": _origin(corruptions, constants, frost, corrupted),
        "reliability": {"id": clean_meter.reliability(), "shifted": pooled.reliability() if rows else None},
    }


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
    model: nn.Module, dataset: Dataset, split: AnySplit | Corrupted, batch_size: int
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
    logits: Tensor, targets: Tensor, scaling: TemperatureScaling, bins: int
) -> tuple[dict[str, float], CalibrationMeter]:
    # In float64 even a very sure model leaves the true class a probability above 0.
    probabilities, scaled = logits.double().softmax(-1), scaling(logits.double()).softmax(-1)
    meter = CalibrationMeter(logits.shape[1], bins)
    meter.update(probabilities, targets)
    after = {
        "adaptive_ece": adaptive_ece(probabilities, targets, bins=bins),
        "ece_ts": ece(scaled, targets, bins=bins),
    }
    return meter.compute() | after, meter
