"""Several losses, one gradient: rules, and the path from two losses to `.grad`."""

from shiftcal.gradients.backward import GradientPair, rectified_backward
from shiftcal.gradients.flat import Gradients, constrained_first, gradients_of_losses, write_gradients
from shiftcal.gradients.momentum import ConstraintMomentum
from shiftcal.gradients.reduce import gather
from shiftcal.gradients.rules import (
    RULES,
    Rectification,
    Rule,
    add,
    cagrad,
    combine,
    find_rule,
    ignore,
    pcgrad,
    rectify,
)

__all__ = [
    "RULES",
    "ConstraintMomentum",
    "GradientPair",
    "Gradients",
    "Rectification",
    "Rule",
    "add",
    "cagrad",
    "combine",
    "constrained_first",
    "find_rule",
    "gather",
    "gradients_of_losses",
    "ignore",
    "pcgrad",
    "rectified_backward",
    "rectify",
    "write_gradients",
]
