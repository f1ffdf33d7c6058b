"""Metrics: functions of (probabilities, targets) that return fractions, and a mergeable meter."""

from shiftcal.metrics.adaptive_ece import adaptive_ece
from shiftcal.metrics.bootstrap import Interval, bootstrap_interval
from shiftcal.metrics.classwise_ece import classwise_ece
from shiftcal.metrics.ece import ece, mce
from shiftcal.metrics.ece_interval import ece_interval
from shiftcal.metrics.gap import confidence_gap, ece_noise_floor
from shiftcal.metrics.meter import CalibrationMeter
from shiftcal.metrics.scores import accuracy, brier, brier_calibration, brier_refinement, nll
from shiftcal.metrics.selective import accuracy_at_coverage, aurc, excess_aurc
from shiftcal.metrics.smooth_ece import smooth_ece

__all__ = [
    "CalibrationMeter",
    "Interval",
    "accuracy",
    "accuracy_at_coverage",
    "adaptive_ece",
    "aurc",
    "bootstrap_interval",
    "brier",
    "brier_calibration",
    "brier_refinement",
    "classwise_ece",
    "confidence_gap",
    "ece",
    "ece_interval",
    "ece_noise_floor",
    "excess_aurc",
    "mce",
    "nll",
    "smooth_ece",
]
