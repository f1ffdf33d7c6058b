"""The training step, readable next to algorithm 1 of the FGR paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from shiftcal.rectification import ConstraintMomentum, Rectification, Rule, rectified_backward


@dataclass(frozen=True)
class Inputs:
    """A batch as the model takes it: normalised images or features, classes, and which were low-pass filtered.

    AugMix appends its views to the images; mixup adds the classes of the partners and the share λ of the image itself.
    """

    images: Float[Tensor, "images ..."]
    targets: Int[Tensor, " batch"]
    filtered: Bool[Tensor, " batch"]
    partners: Int[Tensor, " batch"] | None = None
    share: Float[Tensor, ""] | None = None


@dataclass(frozen=True)
class Objective:
    """What a step descends: a method's row made callable. Without a constraint it is plain training."""

    main: Callable[[Tensor, Inputs], Tensor]
    constraint: Callable[..., Tensor] | None = None
    rule: Rule | str = "rectify"
    momentum: ConstraintMomentum | None = None
    sum_reduction: bool = False
    clip_norm: float | None = None


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

    Nothing is read back from the device. A non-finite gradient raises the optimizer's `found_inf` flag for good, and
    from then on updates are frozen; the caller looks at the flag when it next waits for the device anyway.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    logits = model(mix.images)
    main_loss = objective.main(logits, mix)  # L_main(θ; b_mix)
    logits = logits[: len(mix.targets)]  # those of the images themselves, without AugMix's views
    if objective.constraint is None:  # lines 4–8: warm-up, or a method without a constraint
        report = None
        optimizer.zero_grad(set_to_none=True)
        main_loss.backward()
    else:  # lines 13–23
        if original is None:  # "shared": the unfiltered members of the same batch, one forward pass
            constraint_loss = objective.constraint(logits, mix.targets, mask=~mix.filtered)
        else:  # L_calib(θ; b_orig)
            constraint_loss = objective.constraint(model(original.images), original.targets)
        report = rectified_backward(
            main_loss, constraint_loss, parameters, rule=objective.rule, state=objective.momentum
        )
    gradients = [p.grad for p in parameters if p.grad is not None]
    if objective.sum_reduction:  # rules see mean-reduced losses, since some depend on scale
        torch._foreach_mul_(gradients, len(mix.targets))
    norm = torch.nn.utils.get_total_norm(gradients)
    if objective.clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, objective.clip_norm, norm)
    optimizer.found_inf.logical_or_(~norm.isfinite())  # type: ignore[attr-defined]
    optimizer.step()
    return StepReport(main_loss.detach(), count_correct(logits, mix), norm, report)


def count_correct(logits: Float[Tensor, "batch classes"], mix: Inputs) -> Tensor:
    """Count right predictions; that of a mixed image counts for both its classes by their shares."""
    prediction = logits.detach().argmax(1)
    correct = (prediction == mix.targets).sum()
    if mix.partners is None or mix.share is None:
        return correct
    return mix.share * correct + (1 - mix.share) * (prediction == mix.partners).sum()
