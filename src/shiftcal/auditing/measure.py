"""One test set of an audit: every number that its predictions give."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shiftcal.auditing.grid import fit_temperatures
from shiftcal.calibrators import HistogramBinning, IsotonicRegression, VectorScaling
from shiftcal.calibrators.base import Calibrator
from shiftcal.conformal import ConformalSets, coverage_and_size
from shiftcal.evaluation import Predictions, measure, meter_of
from shiftcal.metrics import accuracy_at_coverage, aurc, brier_calibration, ece_noise_floor, excess_aurc
from shiftcal.metrics.ece_interval import Gaps, gaps_of, interval_of_mean_ece
from shiftcal.records import Measured
from shiftcal.records.audit import AuditCell, Tried

COVERAGES = (80, 90)
LEVEL = 0.9  # of conformal sets
SETS = ("aps", "raps")
CLEAN, AUGMENTED = "validation images", "validation images, as they are and augmented"
_POST_HOC: dict[str, Callable[[], Calibrator]] = {
    "vector": VectorScaling,
    "histogram": HistogramBinning,
    "isotonic": IsotonicRegression,
}


CALIBRATORS = ("temperature", "temperature (augmented)", *_POST_HOC)


@dataclass(frozen=True)
class Fitted:
    """What was fitted on validation predictions: calibrators and conformal sets, or the reasons why not."""

    calibrators: Mapping[str, Calibrator] = field(default_factory=dict)
    tried: Mapping[str, Tried] = field(default_factory=dict)
    sets: Mapping[str, ConformalSets] = field(default_factory=dict)
    no_sets: Mapping[str, str] = field(default_factory=dict)


def fit_all(seen: Mapping[str, Predictions], missing: str = "") -> Fitted:
    """Fit everything on validation predictions: `clean`, and others of augmented images.

    Without any, `missing` is the reason.
    """
    if "clean" not in seen:
        return Fitted(tried={n: Tried(reason=missing) for n in CALIBRATORS}, no_sets=dict.fromkeys(SETS, missing))
    calibrators: dict[str, Calibrator] = {}
    tried: dict[str, Tried] = {}
    clean = seen["clean"]
    try:
        temperatures = fit_temperatures(dict(seen))
        calibrators["temperature"] = temperatures["clean"]
        tried["temperature"] = Tried(fitted_on=CLEAN, temperature=temperatures["clean"].temperature)
        if "shift_aware" in temperatures:
            aware = temperatures["shift_aware"]
            calibrators["temperature (augmented)"] = aware
            tried["temperature (augmented)"] = Tried(fitted_on=AUGMENTED, temperature=aware.temperature)
        else:
            reason = "predictions of augmented validation images are needed, and a table of predictions has none"
            tried["temperature (augmented)"] = Tried(reason=reason)
    except ValueError as error:
        tried |= {name: Tried(reason=str(error)) for name in ("temperature", "temperature (augmented)")}
    for name, make in _POST_HOC.items():
        try:
            calibrators[name] = make().fit(clean.logits, clean.targets)
            tried[name] = Tried(fitted_on=CLEAN)
        except (ImportError, ValueError) as error:
            tried[name] = Tried(reason=str(error))
    p = clean.probabilities
    sets = {kind: ConformalSets.fit(p, clean.targets, level=LEVEL, kind=kind) for kind in SETS}
    return Fitted(calibrators, tried, sets)


def audit_cell(
    predictions: Predictions,
    fitted: Fitted,
    *,
    bins: int = 15,
    shift: str | None = None,
    severity: int | None = None,
    by_class: bool = False,
) -> tuple[AuditCell, Gaps]:
    """Measure one test set, also each class by itself if asked; returns its cell, and its gaps and their noise."""
    cell, meter = measure(predictions, bins=bins, histogram=True)
    p, targets = predictions.probabilities, predictions.targets
    # Sets of the same images in the same order, whose targets tell, are resampled alike; others independently.
    gaps = gaps_of(p, targets, bins=bins, seed=zlib.crc32(targets.cpu().numpy().tobytes()))
    _, low, high = interval_of_mean_ece([gaps])
    confidence = float(p.amax(1).mean())
    calibration = brier_calibration(p, targets, bins=bins)
    more: dict[str, Any] = {
        "confidence": confidence,
        "gap": confidence - cell["accuracy"],
        "noise_floor": ece_noise_floor(p, bins=bins),
        "ece_low": low,
        "ece_high": high,
        "aurc": aurc(p, targets),
        "excess_aurc": excess_aurc(p, targets),
        "accuracy_at": {f"{c}": accuracy_at_coverage(p, targets, coverage=c / 100) for c in COVERAGES},
        "brier_calibration": calibration,
        "brier_refinement": cell["brier"] - calibration,
        "sets": {kind: _set_sizes(sets(p), targets) for kind, sets in fitted.sets.items()},
        "scaled": {name: _after(calibrator, predictions, bins) for name, calibrator in fitted.calibrators.items()},
    }
    if by_class:
        hits = targets[p.argmax(1) == targets]
        more["by_class"] = meter.class_reliability()
        more["class_counts"], more["class_hits"] = (t.bincount(minlength=p.shape[1]).tolist() for t in (targets, hits))
    return AuditCell.model_validate(cell | more | {"shift": shift, "severity": severity}), gaps


def _set_sizes(sets: Tensor, targets: Tensor) -> dict[str, float]:
    coverage, size = coverage_and_size(sets, targets)
    return {"coverage": coverage, "size": size}


def _after(calibrator: Calibrator, predictions: Predictions, bins: int) -> Measured:
    with torch.inference_mode():
        logits = calibrator(predictions.logits.double())
    meter = meter_of(Predictions(logits, predictions.targets), bins)
    return Measured.model_validate(meter.compute() | {"bins": meter.reliability()})
