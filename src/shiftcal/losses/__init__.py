"""Losses: pure functions of (logits, targets). Constraint losses are statistics of the batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from shiftcal._plugins import Registry
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


def find(name: str) -> Callable[..., Tensor]:
    """Look a loss up: a name of this package, one that a plugin or an entry point adds, or "package.module:function".

    Example:
        >>> find("brier").__name__
        'brier'
    """
    own: dict[str, Callable[..., Tensor]] = globals()
    return own[name] if name in __all__ else ADDED.find(name)


def register(name: str, loss: Callable[..., Tensor]) -> None:
    """Add a function of (logits, targets) under a name that rows of methods take; for plugins, see `docs/plugins.md`.

    One that is to serve as a constraint also takes `mask`, the samples that count.
    """
    ADDED.register(name, loss)


ADDED: Registry[Callable[..., Tensor]] = Registry("loss", "shiftcal.losses", lambda: __all__, "function")
