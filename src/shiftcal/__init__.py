"""shiftcal: image classifiers whose confidence stays honest when the data shifts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shiftcal import augment, calibrators, data, losses, methods, metrics, models
    from shiftcal.auditing.audit import Images, audit, audit_predictions
    from shiftcal.auditing.grid import evaluate
    from shiftcal.auditing.tables import read_predictions
    from shiftcal.experiments.config import load_config
    from shiftcal.experiments.run import train
    from shiftcal.filtering import dct_low_pass, fft_low_pass
    from shiftcal.gradients import (
        ConstraintMomentum,
        GradientPair,
        Rectification,
        gather,
        rectified_backward,
        rectify,
    )
    from shiftcal.inference.load import load
    from shiftcal.records.audit import AuditRecord
    from shiftcal.shifts.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
    from shiftcal.training.averaging import WeightAverage

# A public name and where it lives; imported when first used, so that `import shiftcal` costs nothing.
_NAMES = {
    # the method
    "dct_low_pass": "shiftcal.filtering",
    "fft_low_pass": "shiftcal.filtering",
    "rectify": "shiftcal.gradients",
    "rectified_backward": "shiftcal.gradients",
    "gather": "shiftcal.gradients",
    "GradientPair": "shiftcal.gradients",
    "Rectification": "shiftcal.gradients",
    "ConstraintMomentum": "shiftcal.gradients",
    # shifts
    "corrupt": "shiftcal.shifts.corruptions",
    "CORRUPTIONS": "shiftcal.shifts.corruptions",
    "EXTRA_CORRUPTIONS": "shiftcal.shifts.corruptions",
    # whole runs
    "load_config": "shiftcal.experiments.config",
    "train": "shiftcal.experiments.run",
    "evaluate": "shiftcal.auditing.grid",
    "WeightAverage": "shiftcal.training.averaging",
    "load": "shiftcal.inference.load",
    # audits
    "audit": "shiftcal.auditing.audit",
    "audit_predictions": "shiftcal.auditing.audit",
    "read_predictions": "shiftcal.auditing.tables",
    "Images": "shiftcal.auditing.audit",
    "AuditRecord": "shiftcal.records.audit",
}
_MODULES = ("losses", "augment", "metrics", "calibrators", "methods", "data", "models")

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "AuditRecord",
    "ConstraintMomentum",
    "GradientPair",
    "Images",
    "Rectification",
    "WeightAverage",
    "audit",
    "audit_predictions",
    "augment",
    "calibrators",
    "corrupt",
    "data",
    "dct_low_pass",
    "evaluate",
    "fft_low_pass",
    "gather",
    "load",
    "load_config",
    "losses",
    "methods",
    "metrics",
    "models",
    "read_predictions",
    "rectified_backward",
    "rectify",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    if name in _MODULES:
        return import_module(f"shiftcal.{name}")
    raise AttributeError(f"module 'shiftcal' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
