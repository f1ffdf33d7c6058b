"""Calibrators: fitted on held-out (logits, targets), then functions of logits."""

from shiftcal.calibrators.temperature import TemperatureScaling

__all__ = ["TemperatureScaling"]
