"""A method's row made callable: what happens to a batch, and what a step descends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shiftcal import augment, losses, methods
from shiftcal._checks import wrong
from shiftcal.data.loader import Batch
from shiftcal.models import classifier_of
from shiftcal.rectification import RULES, ConstraintMomentum, Rule, add
from shiftcal.training.batches import Inputs
from shiftcal.training.config import Config

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Objective:
    """What a step descends: a method's row made callable. Without a constraint it is plain training.

    A rule changes the gradient of the `constrained` parameters, by default of all.
    A step goes through its batch in micro-batches of `micro_batch` images and averages their gradients; with
    `rectify_each` a rule is applied to those of every micro-batch before.
    """

    main: Callable[[Tensor, Inputs], Tensor]
    constraint: Callable[..., Tensor] | None = None
    rule: Rule | str = "rectify"
    momentum: ConstraintMomentum | None = None
    constrained: tuple[Tensor, ...] | None = None
    sum_reduction: bool = False
    clip_norm: float | None = None
    micro_batch: int | None = None
    rectify_each: bool = False


def objectives(config: Config, model: nn.Module) -> tuple[Objective, Objective]:
    """Return the objective of the warm-up and that of the phase after it."""
    method = config.row
    common: dict[str, Any] = {
        "main": partial(_AUGMENTED[method.augment][1], _main_loss(config, method.loss)),
        "sum_reduction": config.train.loss_reduction == "sum",
        "clip_norm": config.train.clip_norm,
        "micro_batch": config.train.batch_size if config.train.accumulate > 1 else None,
        "rectify_each": config.train.rectify_per == "micro_batch",
    }
    own = _constraint(config, method.constraint, model) if method.constraint else {}
    return Objective(**common), Objective(**common, **own)


def _main_loss(config: Config, cell: methods.Loss) -> Loss:
    options: dict[str, Any] = {}
    if cell.gamma is not None:
        options["gamma"] = getattr(config.gamma, cell.gamma)
    if cell.runner_up is not None:
        options["runner_up"] = cell.runner_up
    return partial(getattr(losses, cell.name), **options)


def _constraint(config: Config, cell: methods.Constraint, model: nn.Module) -> dict[str, Any]:
    loss, rule = getattr(losses, cell.loss), RULES[cell.rule]
    if cell.centres is not None:
        if cell.loss != "soft_ece":
            raise wrong("constraint.centres", f"left out for {cell.loss}, which has no bins", repr(cell.centres))
        loss = partial(loss, centres=cell.centres)
    return {
        "constraint": loss,
        "rule": partial(add, weight=config.constraint.weight) if rule is add else rule,
        "momentum": ConstraintMomentum(cell.momentum) if cell.momentum else None,
        "constrained": tuple(classifier_of(model)[1].parameters()) if cell.scope == "classifier" else None,
    }


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
