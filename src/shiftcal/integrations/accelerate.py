"""FGR in a plain loop with an `Accelerator`."""

from __future__ import annotations

from collections.abc import Iterable

from jaxtyping import Float
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.gradients import ConstraintMomentum, Rectification, rectified_backward
from shiftcal.gradients.rules import Rule
from shiftcal.integrations._extras import missing

try:
    from accelerate import Accelerator
    from accelerate.utils import DistributedType
except (ImportError, RuntimeError) as error:
    raise missing("accelerate", error) from error

__all__ = ["accelerated_backward"]

_SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


def accelerated_backward(
    accelerator: Accelerator,
    main_loss: Float[Tensor, ""],
    constraint_loss: Float[Tensor, ""],
    parameters: Iterable[Tensor],
    *,
    rule: str | Rule = "rectify",
    state: ConstraintMomentum | None = None,
    constrained: Iterable[Tensor] | None = None,
) -> Rectification:
    """Do what `accelerator.backward(loss)` does, for two losses: see `shiftcal.rectified_backward`.

    Both losses are divided by the accelerator's number of accumulation steps and scaled by its gradient scaler, where
    it has one; the rule is applied to each micro-batch. Everything else of the loop stays as it is:
    `accelerator.accumulate`, `clip_grad_norm_`, the prepared optimiser and scheduler.

    Args:
        accelerator: The one that prepared the model.
        main_loss: The loss to descend.
        constraint_loss: The loss that must not rise.
        parameters: What to differentiate for, for example `model.parameters()`.
        rule: A name in `shiftcal.gradients.RULES`, or a function of two flat gradients that returns one.
        state: Running mean of the constraint's gradient.
        constrained: The parameters whose gradient the rule changes, all by default.
    """
    check_not_sharding(accelerator)
    main_loss, constraint_loss = (
        loss / accelerator.gradient_accumulation_steps for loss in (main_loss, constraint_loss)
    )
    main_loss, constraint_loss = scaled(accelerator, main_loss, constraint_loss, state)
    return rectified_backward(main_loss, constraint_loss, parameters, rule=rule, state=state, constrained=constrained)


def check_not_sharding(accelerator: Accelerator) -> None:
    """Raise where parameters would be shards."""
    if accelerator.distributed_type in _SHARDED:
        expected = "one that leaves parameters whole on every rank (DistributedDataParallel): a rule needs all of them"
        raise wrong("accelerator", expected, accelerator.distributed_type.value)


def scaled(
    accelerator: Accelerator, main_loss: Tensor, constraint_loss: Tensor, state: ConstraintMomentum | None
) -> tuple[Tensor, Tensor]:
    """Scale losses as the accelerator does for float16."""
    if accelerator.scaler is None:
        return main_loss, constraint_loss
    # The scale changes: gradients of different scales must not be averaged, and only the direction counts.
    constraint_loss = constraint_loss if state is not None else accelerator.scaler.scale(constraint_loss)
    return accelerator.scaler.scale(main_loss), constraint_loss
