"""Evaluation: one model on the clean test set and on every shift of it, before and after temperature scaling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shiftcal._progress import Progress
from shiftcal.calibrators import TemperatureScaling
from shiftcal.corruptions import SEVERITIES, corrupt, frost_source, named
from shiftcal.data.corrupted import load_corrupted, manifest_of
from shiftcal.data.dataset import Dataset, Split
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
        for each shift and severity; `shifted`, their mean; `reliability`, bins of `id` and of all shifts together;
        `corruptions`, where the corrupted images came from.
    """
    corruptions = named(corruptions)
    total = 2 + sum(map(len, dataset.shifts.values())) + len(SEVERITIES) * len(corruptions)
    with Progress("evaluate", total, enabled=progress) as bar:
        logits = predict(model, dataset, dataset.validation, batch_size)
        scaling = TemperatureScaling(temperature_criterion).fit(logits, dataset.validation.targets.to(logits.device))

        def measure(split: Split) -> tuple[dict[str, float], CalibrationMeter]:
            result = _measure(predict(model, dataset, split, batch_size), split.targets, scaling, bins)
            bar.advance()
            return result

        validation, _ = measure(dataset.validation)
        clean, clean_meter = measure(dataset.test)
        rows: list[dict[str, Any]] = []
        pooled = CalibrationMeter(len(dataset.classes), bins)
        for shift, severity, split in shifted_splits(
            dataset, corruptions, constants, frost=frost, corrupted=corrupted, device=logits.device
        ):
            metrics, meter = measure(split)
            rows.append({"shift": shift, "severity": severity, **metrics})
            pooled.merge(meter)
        bar.line(f"{len(rows)} shifted test sets of {len(dataset.test)} images")
    return {
        "temperature": scaling.temperature,
        "validation": validation,
        "id": clean,
        "shifted": {name: sum(row[name] for row in rows) / len(rows) for name in clean} if rows else None,
        "shifts": rows,
        "corruptions": _origin(corruptions, constants, frost, corrupted),
        "reliability": {"id": clean_meter.reliability(), "shifted": pooled.reliability() if rows else None},
    }


def shifted_splits(
    dataset: Dataset,
    corruptions: Sequence[str],
    constants: str,
    *,
    frost: str | None = None,
    corrupted: str | Path | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[str, int, Split]]:
    """Yield the data set's own shifts, then the corruptions of its test images, by name and severity."""
    for name, splits in dataset.shifts.items():
        for severity, split in enumerate(splits, start=1):
            yield name, severity, split
    for name in corruptions:
        for severity in SEVERITIES:
            if corrupted is not None:
                split = load_corrupted(corrupted, name, severity, classes=dataset.classes, size=len(dataset.test))
                yield name, severity, split
                continue
            images = corrupt(dataset.test.images.to(device), name, severity, constants=constants, frost=frost)
            yield name, severity, Split(images, dataset.test.targets.to(device))


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


def predict(model: nn.Module, dataset: Dataset, split: Split, batch_size: int) -> Float[Tensor, "n classes"]:
    """Return a model's logits for stored images, in evaluation mode, on the model's device."""
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            parts = [model(dataset.normalise(part.to(device))).float() for part in split.images.split(batch_size)]
    finally:
        model.train(training)
    return torch.cat(parts)


def _measure(
    logits: Tensor, targets: Tensor, scaling: TemperatureScaling, bins: int
) -> tuple[dict[str, float], CalibrationMeter]:
    targets = targets.to(logits.device)
    # In float64 even a very sure model leaves the true class a probability above 0.
    probabilities, scaled = logits.double().softmax(-1), scaling(logits.double()).softmax(-1)
    meter = CalibrationMeter(logits.shape[1], bins)
    meter.update(probabilities, targets)
    after = {
        "adaptive_ece": adaptive_ece(probabilities, targets, bins=bins),
        "ece_ts": ece(scaled, targets, bins=bins),
    }
    return meter.compute() | after, meter
