"""The training step: algorithm 1 of the FGR paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shiftcal._errors import wrong
from shiftcal.gradients import (
    Gradients,
    Rectification,
    combine,
    constrained_first,
    gradients_of_losses,
    write_gradients,
)
from shiftcal.training.inputs import Inputs
from shiftcal.training.objective import Objective
from shiftcal.training.optimizer import descend

Forward = Callable[[nn.Module, Inputs], Tensor]


class Statistics(NamedTuple):
    """The main loss of a batch, how many of its predictions were right, and what a rule did, if one was applied."""

    loss: Tensor
    correct: Tensor
    report: Rectification | None = None


@dataclass(frozen=True)
class StepReport:
    """The statistics of a step, as scalars on the device."""

    loss: Tensor
    correct: Tensor
    gradient_norm: Tensor
    rectification: Rectification | None


def forward(model: nn.Module, inputs: Inputs) -> Tensor:
    """Compute the logits of a batch."""
    logits: Tensor = model(inputs.images)
    return logits


def gradients_of(
    model: nn.Module,
    objective: Objective,
    parameters: Sequence[Tensor],
    constrained: int,
    mix: Inputs,
    original: Inputs | None,
    forward: Forward = forward,
) -> tuple[Gradients, Statistics]:
    """Compute the gradient of the main loss on D_mix and, where there is one, of the constraint on D_orig."""
    logits = forward(model, mix)
    main_loss = objective.main(logits, mix)  # L_main(θ; b_mix)
    if main_loss.ndim:
        raise wrong("loss", "a function that returns the mean over a batch", f"shape {list(main_loss.shape)}")
    logits = logits[: len(mix.targets)]  # those of the images themselves, without AugMix's views
    constraint_loss = None
    if objective.constraint is not None and original is not None:  # L_calib(θ; b_orig)
        constraint_loss = objective.constraint(forward(model, original), original.targets)
    elif objective.constraint is not None:  # "shared": the unfiltered members of the same batch, one forward pass
        constraint_loss = objective.constraint(logits, mix.targets, mask=~mix.filtered)
    gradients = gradients_of_losses(main_loss, constraint_loss, parameters, constrained)
    return gradients, Statistics(main_loss.detach(), count_correct(logits, mix))


def count_correct(logits: Tensor, inputs: Inputs) -> Tensor:
    """Count right predictions; that of a mixed image counts for both its classes by their shares."""
    prediction = logits.detach().argmax(1)
    correct = (prediction == inputs.targets).sum()
    if inputs.partners is None or inputs.share is None:
        return correct
    return inputs.share * correct + (1 - inputs.share) * (prediction == inputs.partners).sum()


def no_reduction(gradients: Gradients) -> Gradients:
    """Return the gradients of the only rank."""
    return gradients


@dataclass(frozen=True)
class Ops:
    """How the parts of a step are executed: the engine puts compiled, sharded and accumulating ones in their place."""

    gradients: Callable[..., tuple[Gradients, Statistics]] = gradients_of
    all_reduce: Callable[[Gradients], Gradients] = no_reduction
    combine: Callable[..., tuple[Any, Rectification | None]] = combine


EAGER = Ops()


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    mix: Inputs,
    original: Inputs | None = None,
    ops: Ops = EAGER,
) -> StepReport:
    """Do one step of algorithm 1 on a batch of D_mix and, for an independent constraint, one of D_orig.

    Nothing is read back from the device. A non-finite gradient raises the optimiser's `found_inf` flag for good: from
    then on updates are frozen, and the caller looks at the flag when it next waits for the device anyway.
    """
    parameters, constrained = constrained_first(model.parameters(), objective.constrained)
    optimizer.zero_grad(set_to_none=True)  # the last step's gradients would take room beside this one's
    gradients, stats = ops.gradients(model, objective, parameters, constrained, mix, original)  # lines 5, 14–15
    gradients = ops.all_reduce(gradients)
    final, report = ops.combine(gradients.vector, gradients.size, objective.rule, objective.momentum)  # lines 16–22
    write_gradients(final, parameters, gradients.used, gradients.rest)
    # Rules see mean-reduced losses, since some depend on scale.
    scale = len(mix.targets) if objective.sum_reduction else 1
    norm = descend(optimizer, parameters, scale, objective.clip_norm)  # line 23
    return StepReport(stats.loss, stats.correct, norm, report or stats.report)
