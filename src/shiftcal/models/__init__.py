"""Models by name, or by the import path of a function that builds one."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from torch import nn

from shiftcal._checks import unknown, wrong
from shiftcal.models.densenet import densenet121
from shiftcal.models.resnet import resnet18, resnet50, resnet110
from shiftcal.models.small import SmallNet
from shiftcal.models.wide_resnet import wrn26_10

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "small": SmallNet,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet110": resnet110,
    "densenet121": densenet121,
    "wrn26-10": wrn26_10,
}


def build(name: str, num_classes: int) -> nn.Module:
    """Build a model with fresh weights from torch's global generator.

    Args:
        name: A name in `MODELS`, or "package.module:factory", a function of the number of classes.
        num_classes: Number of classes.

    Example:
        >>> sum(p.numel() for p in build("small", num_classes=8).parameters())
        162800
    """
    return find(name)(num_classes)


def find(name: str) -> Callable[[int], nn.Module]:
    """Look up what builds a model."""
    if ":" in name:
        return _import(name)
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def _import(path: str) -> Callable[[int], nn.Module]:
    module, _, attribute = path.partition(":")
    try:
        factory: Callable[[int], nn.Module] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise wrong("model", "package.module:factory, a function that can be imported", f"{path} ({error})") from None
    if not callable(factory):
        raise wrong("model", "package.module:factory, a function", f"{path}, a {type(factory).__name__}")
    return factory


def classifier_of(model: nn.Module) -> tuple[str, nn.Linear]:
    """Find a model's classifier, its last linear layer, and its name."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise wrong("model", "one that ends in a linear layer", type(model).__name__)
    return layers[-1]


__all__ = ["MODELS", "build", "classifier_of", "find"]
