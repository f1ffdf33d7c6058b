"""Models pretrained on ImageNet, through timm (extra `timm`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from shiftcal._errors import ParameterError, did_you_mean, wrong
from shiftcal.models.weights import read_weights, without_wrapper

# Ours -> timm's. The convolutional ones are torchvision's weights, which the WILDS protocols start from.
PRETRAINED = {
    "imagenet-resnet50": "resnet50.tv_in1k",
    "imagenet-densenet121": "densenet121.tv_in1k",
    "vit-small": "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "swin-tiny": "swin_tiny_patch4_window7_224.ms_in1k",
    "deit-small": "deit_small_patch16_224.fb_in1k",
}
PREFIX = "timm/"
DOWNLOAD = "pretrained"


def timm_name(name: str) -> str | None:
    """Return timm's name of a model, or None if it is not one of timm's."""
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else PRETRAINED.get(name)


def check_timm(name: str) -> None:
    """Raise unless timm is installed and has the model."""
    timm, full = _timm(), str(timm_name(name))
    try:
        known = timm.is_model(full.partition(".")[0]) and timm.models.get_pretrained_cfg(full) is not None
    except RuntimeError:  # a tag, after the dot, that the model does not have
        known = False
    if not known:
        hint = did_you_mean(name, [PREFIX + model for model in timm.list_models()])  # there are a thousand
        raise ParameterError("model", "a model that timm has", repr(name), hint)


def build_timm(name: str, num_classes: int | None, weights: str | None) -> nn.Module:
    """Build a model of timm's from published weights, from a file, or fresh.

    A classifier of another number of classes is replaced by a fresh one; None keeps that of the weights.

    Args:
        name: Its name here or, after `timm/`, there.
        num_classes: Number of classes.
        weights: "pretrained" downloads the published weights; otherwise a file with them, or None.
    """
    check_timm(name)
    timm, full = _timm(), timm_name(name)
    if weights is None:
        return _module(timm.create_model(full, **({} if num_classes is None else {"num_classes": num_classes})))
    model = _downloaded(timm, name, full) if weights == DOWNLOAD else _from_file(timm, full, Path(weights))
    if num_classes is not None and model.num_classes != num_classes:
        model.reset_classifier(num_classes)
    return _module(model)


def _downloaded(timm: Any, name: str, full: str | None) -> Any:
    try:
        return timm.create_model(full, pretrained=True)
    except Exception as error:  # the hub's client raises its own types, httpx's and OSError
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise wrong(
            "train.weights",
            f"a file with the weights of {name} (timm's {full}), since they could not be fetched (--weights FILE)",
            f"{DOWNLOAD} ({reason})",
        ) from None


def _from_file(timm: Any, full: str | None, path: Path) -> Any:
    """Let timm convert and load the tensors, all of them: names that do not fit are an error."""
    model = timm.create_model(full)
    tensors = without_wrapper(read_weights(path), model.state_dict())
    head = model.pretrained_cfg.get("classifier") or "fc"
    rows = tensors.get(f"{head if isinstance(head, str) else head[0]}.weight")
    overlay: dict[str, Any] = {"state_dict": tensors}
    if rows is not None:
        overlay["num_classes"] = len(rows)
    try:
        return timm.create_model(full, pretrained=True, pretrained_cfg_overlay=overlay)
    except (RuntimeError, KeyError) as error:
        lines = " ".join(str(error).split())[:300]
        raise wrong("weights", "those of the configured model", f"{path}: {lines}") from None


def _module(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f"timm should return a module. Found a {type(model).__name__}.")
    return model


def _timm() -> Any:
    try:
        import timm
    except Exception as error:  # a torchvision that does not fit torch raises RuntimeError
        found = f"{type(error).__name__}: {error}"
        raise wrong(
            "model",
            "one without an extra, or timm installed (pip install 'shiftcal[timm]', with a torchvision for this torch)",
            found,
        ) from None
    return timm
