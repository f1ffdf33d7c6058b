"""Losses: pure functions of (logits, targets). Constraint losses are statistics of the batch."""

from shiftcal.losses.cross_entropy import cross_entropy
from shiftcal.losses.dual_focal import dual_focal
from shiftcal.losses.soft_ece import soft_ece

__all__ = ["cross_entropy", "dual_focal", "soft_ece"]
