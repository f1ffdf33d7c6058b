"""Calibrators: fitted on held-out (logits, targets), then functions of logits."""

from shiftcal.calibrators.histogram import HistogramBinning
from shiftcal.calibrators.isotonic import IsotonicRegression
from shiftcal.calibrators.rho_norm import RhoNormScaling
from shiftcal.calibrators.store import load, save
from shiftcal.calibrators.temperature import TemperatureScaling
from shiftcal.calibrators.vector import VectorScaling

__all__ = [
    "HistogramBinning",
    "IsotonicRegression",
    "RhoNormScaling",
    "TemperatureScaling",
    "VectorScaling",
    "load",
    "save",
]
