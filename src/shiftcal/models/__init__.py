"""Models by name, or by the import path of a function that builds one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from shiftcal._errors import wrong
from shiftcal._plugins import Registry
from shiftcal.models.densenet import densenet121
from shiftcal.models.pretrained import DOWNLOAD, PRETRAINED, build_timm, check_timm, timm_name
from shiftcal.models.resnet import resnet18, resnet50, resnet50_pool2, resnet110
from shiftcal.models.small import SmallNet
from shiftcal.models.weights import class_names, load_weights, read_weights
from shiftcal.models.wide_resnet import wrn26_10

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "small": SmallNet,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet50-pool2": resnet50_pool2,
    "resnet110": resnet110,
    "densenet121": densenet121,
    "wrn26-10": wrn26_10,
}


def build(name: str, num_classes: int, weights: str | None = None) -> nn.Module:
    """Build a model; what is not in the weights comes from torch's global generator.

    Args:
        name: A name in `MODELS` or `PRETRAINED`, "timm/NAME", one that a plugin adds, or "package.module:factory", a
            function of the number of classes.
        num_classes: Number of classes.
        weights: A file to start from, or "pretrained" for weights that timm downloads; by default, or "none", fresh
            ones. A classifier of another number of classes in it is left out.

    Example:
        >>> sum(p.numel() for p in build("small", num_classes=8).parameters())
        162800
    """
    weights = None if weights == "none" else weights
    if timm_name(name) is not None:
        return build_timm(name, num_classes, weights)
    model = find(name)(num_classes)
    if weights == DOWNLOAD:
        raise wrong("train.weights", f"a file for {name}, whose weights are published nowhere", weights)
    if weights is not None:
        load_weights(Path(weights), model, new_head=classifier_of(model)[0])
    return model


def find(name: str) -> Callable[[int], nn.Module]:
    """Look up what builds a model with fresh weights."""
    if ":" not in name and timm_name(name) is not None:
        check_timm(name)
        return partial(build_timm, name, weights=None)
    return MODELS[name] if name in MODELS else ADDED.find(name)


def register(name: str, factory: Callable[[int], nn.Module]) -> None:
    """Add a function of the number of classes that builds a model; for plugins, see `docs/plugins.md`."""
    ADDED.register(name, factory)


ADDED: Registry[Callable[[int], nn.Module]] = Registry(
    "model", "shiftcal.models", lambda: [*MODELS, *PRETRAINED, "timm/NAME"], "factory, a function"
)


def classifier_of(model: nn.Module) -> tuple[str, nn.Linear]:
    """Find a model's classifier, its last linear layer, and its name."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise wrong("model", "one that ends in a linear layer", type(model).__name__)
    return layers[-1]


def expected_input(model: nn.Module) -> dict[str, Any]:
    """Tell what a model of timm's takes: `mean` and `std` of its images, and `input_size` if it has but one."""
    published = getattr(model, "pretrained_cfg", None) or {}
    expected = {key: tuple(published[key]) for key in ("mean", "std") if key in published}
    if published.get("fixed_input_size"):
        expected["input_size"] = published["input_size"][-1]
    return expected


__all__ = [
    "ADDED",
    "MODELS",
    "PRETRAINED",
    "build",
    "class_names",
    "classifier_of",
    "expected_input",
    "find",
    "load_weights",
    "read_weights",
    "register",
]
