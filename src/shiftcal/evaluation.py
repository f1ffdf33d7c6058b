"""A model on one split: predictions, and what they are worth. Validation, grids over shifts and audits use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from shiftcal import _distributed
from shiftcal.calibrators.base import Calibrator
from shiftcal.data.split import MemorySplit
from shiftcal.metrics import CalibrationMeter, adaptive_ece, smooth_ece
from shiftcal.metrics.binning import bin_sums, top_label

HISTOGRAM = 100  # steps of confidence


@runtime_checkable
class Parts(Protocol):
    """What can be predicted on: images that are gone through in order, part by part."""

    def to(self, device: torch.device | str) -> Parts:
        """Return these images, delivered on a device."""

    def parts(self, size: int, rank: int = 0, world_size: int = 1) -> Iterator[tuple[Tensor, MemorySplit]]:
        """Go through the samples in order, see `data.ImageSplit`."""


@dataclass(frozen=True)
class Predictions:
    """Logits and classes of a split's samples.

    Attributes:
        logits: The logits; of given probabilities their logarithms.
        targets: The classes.
        given: Probabilities, where these were given: the softmax of their logarithms may lie on the other side of a
            bin's edge.
    """

    logits: Float[Tensor, "n classes"]
    targets: Int[Tensor, " n"]
    given: Float[Tensor, "n classes"] | None = None

    def __add__(self, other: Predictions) -> Predictions:
        both = None if self.given is None or other.given is None else torch.cat([self.given, other.given])
        return Predictions(torch.cat([self.logits, other.logits]), torch.cat([self.targets, other.targets]), both)

    @property
    def probabilities(self) -> Float[Tensor, "n classes"]:
        """The probabilities in float64, in which even a very sure model leaves the true class one above 0."""
        return self.logits.double().softmax(-1) if self.given is None else self.given.double()

    def cpu(self) -> Predictions:
        """Return them in the machine's memory."""
        return Predictions(self.logits.cpu(), self.targets.cpu(), None if self.given is None else self.given.cpu())


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters; the CPU for one without any, such as an ONNX model."""
    return next((tensor.device for tensor in model.parameters()), torch.device("cpu"))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode and every part of it back as it was: some may be frozen in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def predict(
    model: nn.Module, split: Parts, preprocess: Callable[[Tensor], Tensor], *, batch_size: int = 500
) -> Predictions:
    """Compute a model's logits for stored images, in evaluation mode, on the model's device.

    Of several ranks each goes through its share of the images, and all get the result. Logits that are not finite are
    a FloatingPointError: the model diverged, or its weights are damaged.
    """
    device = device_of(model)
    found: list[tuple[int, Tensor, Tensor]] = []
    with evaluating(model), torch.inference_mode():
        for index, part in split.to(device).parts(batch_size, _distributed.rank(), _distributed.world_size()):
            found.append((int(index[0]), model(preprocess(part.images)).float(), part.targets))
    if _distributed.is_distributed():
        local = [(first, logits.cpu(), targets.cpu()) for first, logits, targets in found]
        parts = (part for parts in _distributed.all_gather_object(local) for part in parts)
        found = sorted(parts, key=lambda part: part[0])
    logits, targets = torch.cat([part[1] for part in found]), torch.cat([part[2] for part in found])
    if bad := int((~logits.isfinite()).any(-1).sum()):
        raise FloatingPointError(f"The logits of {bad} of {len(logits)} images are not finite.")
    return Predictions(logits.to(device), targets.to(device))


def measure(
    predictions: Predictions,
    *,
    bins: int = 15,
    scalings: Mapping[str, Calibrator] | None = None,
    histogram: bool = False,
) -> tuple[dict[str, Any], CalibrationMeter]:
    """Measure predictions, as they are and after each calibrator.

    Returns:
        What `records.Cell` holds, as plain data, and the meter, which adds up over splits.
    """
    logits, targets, p = predictions.logits.double(), predictions.targets, predictions.probabilities
    cell, meter = _metrics(p, targets, bins)
    cell["n"] = len(targets)
    cell["scaled"] = {
        name: _metrics(scaling(logits).softmax(-1), targets, bins)[0] for name, scaling in (scalings or {}).items()
    }
    if histogram:
        sums = bin_sums(*top_label(p, targets), HISTOGRAM)
        right = sums.hits.long()
        cell["histogram"] = {"right": right.tolist(), "wrong": (sums.count.long() - right).tolist()}
    return cell, meter


def meter_of(predictions: Predictions, bins: int = 15) -> CalibrationMeter:
    """Sum up predictions for the metrics that can be summed."""
    return _meter(predictions.probabilities, predictions.targets, bins)


def _meter(probabilities: Tensor, targets: Tensor, bins: int) -> CalibrationMeter:
    meter = CalibrationMeter(probabilities.shape[1], bins)
    meter.update(probabilities, targets)
    return meter


def _metrics(probabilities: Tensor, targets: Tensor, bins: int) -> tuple[dict[str, Any], CalibrationMeter]:
    meter = _meter(probabilities, targets, bins)
    more = {
        "adaptive_ece": adaptive_ece(probabilities, targets, bins=bins),
        "smooth_ece": smooth_ece(probabilities, targets),
        "bins": meter.reliability(),
    }
    return meter.compute() | more, meter
