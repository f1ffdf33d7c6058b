"""A method's row made callable: what happens to a batch, and what a step descends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from shiftcal import augment, losses, methods
from shiftcal._checks import wrong
from shiftcal.data.loader import Batch
from shiftcal.rectification import RULES, ConstraintMomentum, Rule, add
from shiftcal.training.batches import Inputs
from shiftcal.training.config import Config

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """What a step descends: a method's row made callable. Without a constraint it is plain training.

    A step goes through its batch in micro-batches of `micro_batch` images and averages their gradients; with
    `rectify_each` a rule is applied to those of every micro-batch before.
    """

    main: Callable[[Tensor, Inputs], Tensor]
    constraint: Callable[..., Tensor] | None = None
    rule: Rule | str = "rectify"
    momentum: ConstraintMomentum | None = None
    sum_reduction: bool = False
    clip_norm: float | None = None
    micro_batch: int | None = None
    rectify_each: bool = False


def objectives(config: Config) -> tuple[Objective, Objective]:
    """Return the objective of the warm-up and that of the phase after it."""
    method = methods.find(config.method)
    loss = getattr(losses, method.loss)
    if method.gamma is not None:
        loss = partial(loss, gamma=getattr(config.gamma, method.gamma))
    rule = RULES[method.rule]
    if rule is add:
        rule = partial(add, weight=config.constraint.weight)
    common: dict[str, Any] = {
        "main": partial(_AUGMENTED[method.augment][1], loss),
        "sum_reduction": config.train.loss_reduction == "sum",
        "clip_norm": config.train.clip_norm,
        "micro_batch": config.train.batch_size if config.train.accumulate > 1 else None,
        "rectify_each": config.train.rectify_per == "micro_batch",
    }
    constraint = getattr(losses, method.constraint) if method.constraint else None
    momentum = ConstraintMomentum(method.constraint_momentum) if method.constraint_momentum else None
    return Objective(**common), Objective(**common, constraint=constraint, rule=rule, momentum=momentum)


def augmented(name: str | None, images: Tensor, batch: Batch, generator: torch.Generator | None) -> Inputs:
    """Apply a method's augmentation to cropped images; the result is in grey levels 0..255."""
    return _AUGMENTED[name][0](images, batch, generator)


def _plain(images: Tensor, batch: Batch, _: torch.Generator | None) -> Inputs:
    return Inputs(images.float(), batch.targets, batch.filtered, local=batch.local)


def _plain_loss(loss: Loss, logits: Tensor, inputs: Inputs) -> Tensor:
    return loss(logits, inputs.targets)


def _mixup(images: Tensor, batch: Batch, generator: torch.Generator | None) -> Inputs:
    if batch.local:
        raise wrong("method", "one without mixup, where several processes decode from disk", "mixup")
    mixed = augment.mixup(images, generator)
    return Inputs(mixed.images, batch.targets, batch.filtered, batch.targets[mixed.partner], mixed.share)


def _mixup_loss(loss: Loss, logits: Tensor, inputs: Inputs) -> Tensor:
    if inputs.partners is None or inputs.share is None:
        raise TypeError("Mixup's objective should get mixed images. Found some without partners.")
    return augment.mixup_loss(loss, logits, inputs.targets, inputs.partners, inputs.share)


def _augmix(images: Tensor, batch: Batch, generator: torch.Generator | None) -> Inputs:
    views = augment.augmix(images, generator)
    return Inputs(torch.cat([images.float(), *views]), batch.targets, batch.filtered, local=batch.local)


def _augmix_loss(loss: Loss, logits: Tensor, inputs: Inputs) -> Tensor:
    return augment.augmix_loss(loss, logits, inputs.targets)


# A method's augmentation: what it does to the images, and the objective that belongs to it.
_AUGMENTED: dict[str | None, tuple[Callable[..., Inputs], Callable[..., Tensor]]] = {
    None: (_plain, _plain_loss),
    "mixup": (_mixup, _mixup_loss),
    "augmix": (_augmix, _augmix_loss),
}
