"""Grad-CAM: where in an image the evidence for a class lies (Selvaraju et al., ICCV 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from shiftcal._errors import DataError, unknown, wrong
from shiftcal.evaluation import evaluating
from shiftcal.models import classifier_of

_SPATIAL = "one with a spatial feature map or tokens of image patches before its classifier"


@dataclass(frozen=True)
class _Call:
    """The output of one module in a forward pass: which call it was, and its shape."""

    place: int
    shape: tuple[int, ...]


def grad_cam(
    model: nn.Module,
    images: Float[Tensor, "n 3 height width"],
    classes: Int[Tensor, " n"] | None = None,
    layer: str | None = None,
) -> Float[Tensor, "n height width"]:
    """Compute Grad-CAM maps, equations 1 and 2 of the paper: ReLU(Σ_k α_k A_k), α_k the mean of ∂y_c/∂A_k.

    Args:
        model: Takes the images, returns logits. It is put into evaluation mode and back.
        images: Preprocessed images.
        classes: The class of each image to explain; the predicted one by default.
        layer: Name of the module whose output is A. By default the last feature map before the pooling: of a
            convolutional network the last 4-D output of more than one pixel (channels first or last); of a
            transformer the last tokens of which those of patches still have a part in the logits, without class and
            register tokens.

    Returns:
        Maps in 0..1, resized to the images, the largest value of each 1; zero where no evidence is positive.
    """
    if images.ndim != 4 or len(images) == 0:
        raise wrong("images", "of shape [N, 3, H, W], one at least", list(images.shape))
    with evaluating(model), torch.enable_grad():
        maps = _maps(model, images.detach().clone().requires_grad_(), classes, layer)
    resized = functional.interpolate(maps[:, None], images.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
    largest = resized.amax((1, 2), keepdim=True)
    return resized / largest.where(largest > 0, 1.0)


def _maps(
    model: nn.Module, images: Tensor, classes: Tensor | None, layer: str | None
) -> Float[Tensor, "n rows columns"]:
    width = classifier_of(model)[1].in_features
    chosen = _candidates(model, images, width, layer)
    kept: list[Tensor] = []

    def keep(place: int, output: Tensor) -> Tensor | None:
        if place not in chosen:
            return None
        kept.append(output)
        return output.clone()  # the next layer may change it in place

    with _watched(model, keep, layer):
        logits = model(images)
    target = logits.argmax(1) if classes is None else classes.to(logits.device).long()
    score = logits.gather(1, target[:, None]).sum()
    gradients = torch.autograd.grad(score, kept, allow_unused=True)
    for activation, gradient in reversed(list(zip(kept, gradients, strict=True))):
        if gradient is None:
            continue
        a, g = (_channels_first(x.detach().float(), model, width) for x in (activation, gradient))
        if bool(g.any()):  # after the last attention, only the class token has a part in the logits
            return (g.mean((2, 3), keepdim=True) * a).sum(1).relu()
    raise DataError("model", _SPATIAL, "none whose gradient is not zero")


def _candidates(model: nn.Module, images: Tensor, width: int, layer: str | None) -> set[int]:
    """Choose the calls whose output may be A: one of a convolutional network, several of a transformer."""
    calls: list[_Call] = []

    def note(place: int, output: Tensor) -> None:
        if output.shape[0] == len(images) and _is_spatial(output):
            calls.append(_Call(place, tuple(output.shape)))

    with torch.no_grad(), _watched(model, note, layer):
        model(images)
    if not calls:
        raise DataError("model" if layer is None else "layer", _SPATIAL, layer or type(model).__name__)
    if layer is not None or len(calls[-1].shape) == 4:
        return {calls[-1].place}
    return {call.place for call in calls if len(call.shape) == 3 and call.shape[2] == width} or {calls[-1].place}


def _is_spatial(output: Tensor) -> bool:
    if output.ndim == 4:
        return output.shape[2] * min(output.shape[1], output.shape[3]) > 1
    return output.ndim == 3 and output.shape[1] > 1


@contextmanager
def _watched(model: nn.Module, see: Callable[[int, Tensor], Tensor | None], layer: str | None) -> Iterator[None]:
    """Let `see` have every module's output in the order of execution, or one layer's; it may return another one."""
    named = dict(model.named_modules())
    if layer is not None and layer not in named:
        raise unknown("layer", layer, [name for name in named if name])
    count = 0

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:  # noqa: ARG001 (torch gives them)
        nonlocal count
        count += 1
        return see(count, output) if isinstance(output, Tensor) and output.is_floating_point() else None

    watched = [named[layer]] if layer is not None else [module for name, module in named.items() if name]
    handles = [module.register_forward_hook(hook) for module in watched]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _channels_first(values: Tensor, model: nn.Module, width: int) -> Float[Tensor, "n channels rows columns"]:
    """Bring a feature map or tokens into the order [N, C, H, W]."""
    if values.ndim == 4:
        return values.permute(0, 3, 1, 2) if _is_channels_last(values.shape, width) else values
    rows, columns = _grid(values.shape[1], model)
    patches = values[:, values.shape[1] - rows * columns :]
    found: Tensor = patches.transpose(1, 2).unflatten(2, (rows, columns))
    return found


def _is_channels_last(shape: torch.Size, width: int) -> bool:
    if width in (shape[1], shape[3]):
        return shape[1] != width
    return shape[1] == shape[2] != shape[3]


def _grid(tokens: int, model: nn.Module) -> tuple[int, int]:
    """Return rows and columns of the patches: as the model tells, or the largest square; the rest are prefix tokens."""
    size = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    prefix = getattr(model, "num_prefix_tokens", None)
    if size is not None and prefix is not None and size[0] * size[1] + prefix == tokens:
        return int(size[0]), int(size[1])
    side = math.isqrt(tokens - (prefix or 0))
    return side, side
