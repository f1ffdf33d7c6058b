"""shiftcal: image classifiers whose confidence stays honest when the data shifts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shiftcal import augment, calibrators, losses, methods, metrics
    from shiftcal.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
    from shiftcal.evaluation import evaluate
    from shiftcal.filtering import dct_low_pass, fft_low_pass
    from shiftcal.rectification import ConstraintMomentum, Rectification, rectified_backward, rectify
    from shiftcal.training.config import load_config
    from shiftcal.training.loop import train

# A public name and where it lives; imported when first used, so that `import shiftcal` costs nothing.
_NAMES = {
    # the method
    "dct_low_pass": "shiftcal.filtering",
    "fft_low_pass": "shiftcal.filtering",
    "rectify": "shiftcal.rectification",
    "rectified_backward": "shiftcal.rectification",
    "Rectification": "shiftcal.rectification",
    "ConstraintMomentum": "shiftcal.rectification",
    # shifts
    "corrupt": "shiftcal.corruptions",
    "CORRUPTIONS": "shiftcal.corruptions",
    "EXTRA_CORRUPTIONS": "shiftcal.corruptions",
    # whole runs
    "load_config": "shiftcal.training.config",
    "train": "shiftcal.training.loop",
    "evaluate": "shiftcal.evaluation",
}
_MODULES = ("losses", "augment", "metrics", "calibrators", "methods")

__all__ = [
    "CORRUPTIONS",
    "EXTRA_CORRUPTIONS",
    "ConstraintMomentum",
    "Rectification",
    "augment",
    "calibrators",
    "corrupt",
    "dct_low_pass",
    "evaluate",
    "fft_low_pass",
    "load_config",
    "losses",
    "methods",
    "metrics",
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
