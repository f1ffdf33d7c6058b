"""Metrics: functions of (probabilities, targets) that return fractions, and a mergeable meter."""

from shiftcal.metrics.adaptive_ece import adaptive_ece
from shiftcal.metrics.classwise_ece import classwise_ece
from shiftcal.metrics.ece import ece, mce
from shiftcal.metrics.meter import CalibrationMeter
from shiftcal.metrics.scores import accuracy, brier, nll

__all__ = ["CalibrationMeter", "accuracy", "adaptive_ece", "brier", "classwise_ece", "ece", "mce", "nll"]
