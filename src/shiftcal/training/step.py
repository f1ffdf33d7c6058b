"""The training step, readable next to algorithm 1 of the FGR paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shiftcal import _ranks
from shiftcal.rectification import (
    GradientPair,
    Rectification,
    Through,
    apply_gradients,
    as_it_is,
    constrained_first,
    gradient_pair,
)
from shiftcal.training.batches import Inputs, count_correct, logits_of, micro_batches
from shiftcal.training.objective import Objective
from shiftcal.training.optimizer import accumulate, descend

# Loss, right predictions, and the gradients of one loss (if they are not in `.grad` already) or of two.
Found = tuple[Tensor, Tensor, tuple[Tensor | None, ...] | None, GradientPair | None]


@dataclass(frozen=True)
class StepReport:
    """What a step tells, as scalars on the device."""

    loss: Tensor
    correct: Tensor
    gradient_norm: Tensor
    rectification: Rectification | None


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    mix: Inputs,
    original: Inputs | None,
    through: Through = as_it_is,
) -> StepReport:
    """Do one step of algorithm 1 on a batch of D_mix and, for an independent constraint, one of D_orig.

    Nothing is read back from the device. A non-finite gradient raises the optimizer's `found_inf` flag for good: from
    then on updates are frozen, and the caller looks at the flag when it next waits for the device anyway. `through` may
    compile the functions that do the work.
    """
    trainable = (p for p in model.parameters() if p.requires_grad)
    parameters, constrained = constrained_first(trainable, objective.constrained)
    report, pair, losses, correct = None, None, [], []
    optimizer.zero_grad(set_to_none=True)
    for part, of_original, share, last in micro_batches(mix, original, objective.micro_batch):
        with _ranks.adding_up(parameters if last and objective.constraint is None else ()):
            found: Found = through(gradients)(model, objective, parameters, constrained, part, of_original, share)
        loss, right, main, both = found
        losses.append(loss * share)
        correct.append(right)
        if main is not None:
            accumulate(parameters, main)
        if both is not None:
            pair = both.times(share) if pair is None else pair.plus(both, share)
    if pair is not None and objective.rectify_each:
        report = apply_gradients(pair, parameters, rule="none")
    elif pair is not None:  # lines 13–23
        _ranks.add_up(pair.vectors)
        report = apply_gradients(pair, parameters, rule=objective.rule, state=objective.momentum, through=through)
    # Rules see mean-reduced losses, since some depend on scale.
    norm = descend(optimizer, parameters, len(mix.targets) if objective.sum_reduction else 1, objective.clip_norm)
    return StepReport(torch.stack(losses).sum(), torch.stack(correct).sum(), norm, report)


def gradients(
    model: nn.Module,
    objective: Objective,
    parameters: Sequence[Tensor],
    constrained: int,
    part: Inputs,
    of_original: Inputs | None,
    share: float,
) -> Found:
    """Compute the gradients of a micro-batch, which is a share of the whole batch.

    The constraint's is that of the first `constrained` parameters.
    """
    logits = logits_of(model, part)
    main_loss = objective.main(logits, part)  # L_main(θ; b_mix)
    logits = logits[: len(part.targets)]  # those of the images themselves, without AugMix's views
    correct = count_correct(logits, part)
    if objective.constraint is None:  # lines 4–8: warm-up, or a method without a constraint
        main = None
        if torch.compiler.is_compiling():
            main = torch.autograd.grad(main_loss * share, parameters, allow_unused=True)
        else:
            (main_loss * share).backward()
        return main_loss.detach(), correct, main, None
    if of_original is None:  # "shared": the unfiltered members of the same batch, one forward pass
        constraint_loss = objective.constraint(logits, part.targets, mask=~part.filtered)
    else:  # L_calib(θ; b_orig)
        constraint_loss = objective.constraint(logits_of(model, of_original), of_original.targets)
    pair = gradient_pair(main_loss, constraint_loss, parameters, constrained)
    if objective.rectify_each:
        _ranks.add_up(pair.vectors)
        pair = pair.combined(objective.rule)
    return main_loss.detach(), correct, None, pair
