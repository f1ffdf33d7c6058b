"""A method's row made callable: what a step descends."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shiftcal import augment, losses
from shiftcal._errors import wrong
from shiftcal.gradients import RULES, ConstraintMomentum, Rule, add, rectify
from shiftcal.methods import Constraint, Loss, Method
from shiftcal.models import classifier_of
from shiftcal.training.inputs import Inputs
from shiftcal.training.settings import ConstraintSettings, GammaSettings, TrainSettings

MainLoss = Callable[[Tensor, Inputs], Tensor]


@dataclass(frozen=True)
class Objective:
    """What a step descends. Without a constraint it is plain training.

    Attributes:
        main: The main loss, a function of logits and inputs.
        constraint: The loss that must not rise, a function of logits, targets and a mask.
        rule: How the two gradients become one.
        momentum: The running mean of the constraint's gradient.
        constrained: The parameters whose gradient the rule changes, by default all.
        sum_reduction: Whether the step follows the gradient of the sum over the batch instead of the mean.
        clip_norm: Largest norm of the gradient.
    """

    main: MainLoss
    constraint: Callable[..., Tensor] | None = None
    rule: Rule = rectify
    momentum: ConstraintMomentum | None = None
    constrained: tuple[Tensor, ...] | None = None
    sum_reduction: bool = False
    clip_norm: float | None = None


def objectives(
    method: Method,
    model: nn.Module,
    train: TrainSettings,
    gamma: GammaSettings,
    constraint: ConstraintSettings,
    class_prior: tuple[float, ...] | None = None,
) -> tuple[Objective, Objective]:
    """Return the objective of the warm-up and that of the phase after it; the prior is for losses that take one."""
    common: dict[str, Any] = {
        "main": partial(_VIEWS[method.augment], _loss(method.loss, gamma, class_prior)),
        "sum_reduction": train.loss_reduction == "sum",
        "clip_norm": method.clip_norm if train.clip_norm is None else train.clip_norm,
    }
    own = _constraint(method.constraint, model, constraint.weight) if method.constraint else {}
    return Objective(**common), Objective(**common, **own)


def _loss(
    cell: Loss, gamma: GammaSettings, class_prior: tuple[float, ...] | None
) -> Callable[[Tensor, Tensor], Tensor]:
    options: dict[str, Any] = {"class_prior": class_prior} if cell.prior else {}
    if cell.smoothing is not None:
        options["smoothing"] = cell.smoothing
    if cell.gamma is not None:
        options["gamma"] = getattr(gamma, cell.gamma)
    if cell.runner_up is not None:
        options["runner_up"] = cell.runner_up
    return partial(losses.find(cell.name), **options)


def _constraint(cell: Constraint, model: nn.Module, weight: float) -> dict[str, Any]:
    loss, rule = losses.find(cell.loss), RULES[cell.rule]
    taken = inspect.signature(loss).parameters.values()
    if not any(p.name == "mask" or p.kind is p.VAR_KEYWORD for p in taken):
        raise wrong("constraint.loss", "a function that takes `mask`, the samples that count", repr(cell.loss))
    if cell.centres is not None:
        if cell.loss != "soft_ece":
            raise wrong("constraint.centres", f"left out for {cell.loss}, which has no bins", repr(cell.centres))
        loss = partial(loss, centres=cell.centres)
    constrained = tuple(classifier_of(model)[1].parameters()) if cell.scope == "classifier" else None
    return {
        "constraint": loss,
        "rule": partial(add, weight=weight) if rule is add else rule,
        "momentum": _momentum(cell.momentum, constrained or tuple(model.parameters())) if cell.momentum else None,
        "constrained": constrained,
    }


def _momentum(beta: float, parameters: tuple[Tensor, ...]) -> ConstraintMomentum:
    """Start a running mean at its full length, so that a step can be compiled and captured with it."""
    size = sum(p.numel() for p in parameters if p.requires_grad)
    momentum = ConstraintMomentum(beta)
    momentum(torch.zeros(size, device=parameters[0].device))
    return momentum


def _plain(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, inputs: Inputs) -> Tensor:
    return loss(logits, inputs.targets)


def _mixup(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, inputs: Inputs) -> Tensor:
    if inputs.partners is None or inputs.share is None:
        raise TypeError("Mixup's objective should get mixed images. Found some without partners.")
    return augment.mixup_loss(loss, logits, inputs.targets, inputs.partners, inputs.share)


def _augmix(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, inputs: Inputs) -> Tensor:
    return augment.augmix_loss(loss, logits, inputs.targets)


_VIEWS: dict[str | None, Callable[..., Tensor]] = {None: _plain, "mixup": _mixup, "augmix": _augmix}
