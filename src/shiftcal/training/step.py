"""The training step, readable next to algorithm 1 of the FGR paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shiftcal import _ranks
from shiftcal.rectification import ConstraintMomentum, Rectification, Rule, apply_gradients, gradient_pair
from shiftcal.training.batches import Inputs, count_correct, logits_of, micro_batches


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


@dataclass(frozen=True)
class StepReport:
    """What a step tells, as scalars on the device."""

    loss: Tensor
    correct: Tensor
    gradient_norm: Tensor
    rectification: Rectification | None


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, objective: Objective, mix: Inputs, original: Inputs | None
) -> StepReport:
    """Do one step of algorithm 1 on a batch of D_mix and, for an independent constraint, one of D_orig.

    Nothing is read back from the device. A non-finite gradient raises the optimizer's `found_inf` flag for good: from
    then on updates are frozen, and the caller looks at the flag when it next waits for the device anyway.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    report, pair, losses, correct = None, None, [], []
    optimizer.zero_grad(set_to_none=True)
    for part, of_original, share in micro_batches(mix, original, objective.micro_batch):
        logits = logits_of(model, part)
        main_loss = objective.main(logits, part)  # L_main(θ; b_mix)
        logits = logits[: len(part.targets)]  # those of the images themselves, without AugMix's views
        losses.append(main_loss.detach() * share)
        correct.append(count_correct(logits, part))
        if objective.constraint is None:  # lines 4–8: warm-up, or a method without a constraint
            (main_loss * share).backward()
            continue
        if of_original is None:  # "shared": the unfiltered members of the same batch, one forward pass
            constraint_loss = objective.constraint(logits, part.targets, mask=~part.filtered)
        else:  # L_calib(θ; b_orig)
            constraint_loss = objective.constraint(logits_of(model, of_original), of_original.targets)
        found = gradient_pair(main_loss, constraint_loss, parameters)
        if objective.rectify_each:
            _ranks.add_up(found.vectors)
            found = found.combined(objective.rule)
        pair = found.times(share) if pair is None else pair.plus(found, share)
    if pair is None:
        _ranks.add_up_all([p.grad for p in parameters if p.grad is not None])
    elif objective.rectify_each:
        report = apply_gradients(pair, parameters, rule="none")
    else:  # lines 13–23
        _ranks.add_up(pair.vectors)
        report = apply_gradients(pair, parameters, rule=objective.rule, state=objective.momentum)
    norm = descend(optimizer, objective, parameters, len(mix.targets))
    return StepReport(torch.stack(losses).sum(), torch.stack(correct).sum(), norm, report)


def descend(
    optimizer: torch.optim.Optimizer, objective: Objective, parameters: Sequence[Tensor], count: int
) -> Float[Tensor, ""]:
    """Take the step along the gradients that are there, clipped if the objective says so; returns their norm."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if objective.sum_reduction:  # rules see mean-reduced losses, since some depend on scale
        torch._foreach_mul_(gradients, count)
    norm = torch.nn.utils.get_total_norm(gradients)
    if objective.clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, objective.clip_norm, norm)
    optimizer.found_inf.logical_or_(~norm.isfinite())  # type: ignore[attr-defined]
    optimizer.step()
    return norm
