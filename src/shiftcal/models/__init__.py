"""Models by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from shiftcal._checks import unknown
from shiftcal.models.small import SmallNet

MODELS: dict[str, Callable[[int], nn.Module]] = {"small": SmallNet}


def build(name: str, num_classes: int) -> nn.Module:
    """Build a model by name, with fresh weights from torch's global generator.

    Example:
        >>> sum(p.numel() for p in build("small", num_classes=8).parameters())
        162800
    """
    if name not in MODELS:
        raise unknown("name", name, MODELS)
    return MODELS[name](num_classes)


__all__ = ["MODELS", "SmallNet", "build"]
