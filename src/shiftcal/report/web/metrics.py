"""Which metrics the page shows, and what they mean in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from shiftcal.records import Cell, Measured

Better = Literal["low", "high", "zero"]


@dataclass(frozen=True)
class Metric:
    """A metric: its key in a record, how it is written, and what it means.

    Attributes:
        key: A field of a cell, or "field.name" for an entry of a mapping.
        title: Its short name.
        words: What it means.
        factor: What values are multiplied with when they are shown.
        decimals: Decimals of the shown value.
        better: Whether low or high values are better, or those near zero.
        scales: Whether it can be measured after a calibrator too.
    """

    key: str
    title: str
    words: str
    factor: int = 100
    decimals: int = 2
    better: Better = "low"
    scales: bool = True


METRICS = (
    Metric("ece", "ECE", "Expected calibration error in %: the mean gap between confidence and accuracy over bins."),
    Metric("accuracy", "Accuracy", "How often the prediction is right, in %.", decimals=1, better="high"),
    Metric("adaptive_ece", "ACE", "Adaptive calibration error in %: over classes, with bins that hold equally many."),
    Metric("classwise_ece", "CECE", "Classwise ECE in %: the calibration error of each class, averaged."),
    Metric("smooth_ece", "Smooth ECE", "Calibration error in % without bins: gaps are smoothed by a kernel."),
    Metric("mce", "MCE", "Maximum calibration error in %: the gap of the worst bin."),
    Metric("nll", "NLL", "Negative log-likelihood in nats: how surprising the true classes are.", 1, 3),
    Metric("brier", "Brier", "Squared distance of probabilities and truth, summed over classes.", 1, 3),
    Metric("gap", "Gap", "Mean confidence minus accuracy in points: above 0, too sure.", 100, 2, "zero", scales=False),
    Metric("noise_floor", "Floor", "The ECE in % that chance gives a calibrated model at this n.", scales=False),
    Metric("aurc", "AURC", "Area under the risk–coverage curve in %: whether the most confident are right.",
           scales=False),
    Metric("accuracy_at.90", "Acc. at 90 %", "Accuracy in % of the 90 % most confident images.", 100, 1, "high",
           scales=False),
    Metric("sets.aps.size", "APS size", "Mean size of conformal sets made to hold the true class 90 % of the time.",
           1, 2, scales=False),
    Metric("sets.aps.coverage", "APS coverage", "How often those sets hold the true class, in %.", 100, 1, "high",
           scales=False),
)  # fmt: skip


def value_of(cell: Cell | Measured, key: str) -> float | None:
    """Return a metric of a cell by its key, None where it was not measured."""
    found: Any = cell
    for name in key.split("."):
        found = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
    return found if isinstance(found, int | float) else None
