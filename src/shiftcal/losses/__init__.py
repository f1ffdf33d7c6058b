"""Losses: pure functions of (logits, targets). Constraint losses are statistics of the batch."""

from shiftcal.losses.brier import brier
from shiftcal.losses.bsce_gra import bsce_gra
from shiftcal.losses.cross_entropy import cross_entropy
from shiftcal.losses.dual_focal import dual_focal
from shiftcal.losses.focal import flsd53, focal
from shiftcal.losses.label_smoothing import label_smoothing
from shiftcal.losses.max_ent import max_ent
from shiftcal.losses.mmce import mmce
from shiftcal.losses.soft_avuc import soft_avuc
from shiftcal.losses.soft_ece import soft_ece

__all__ = [
    "brier",
    "bsce_gra",
    "cross_entropy",
    "dual_focal",
    "flsd53",
    "focal",
    "label_smoothing",
    "max_ent",
    "mmce",
    "soft_avuc",
    "soft_ece",
]
