"""From two losses to one gradient in `.grad`: flatten, reduce over the ranks, apply a rule, write.

Training and a user's loop take the same path. What differs is the reduction: a user's ranks average their gradients,
our training loop adds up the shares of a global batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jaxtyping import Float
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.gradients.flat import Gradients, constrained_first, gradients_of_losses, write_gradients
from shiftcal.gradients.momentum import ConstraintMomentum
from shiftcal.gradients.reduce import check_not_sharded, mean_over_ranks
from shiftcal.gradients.rules import Rectification, Rule, combine, find_rule


def rectified_backward(
    main_loss: Float[Tensor, ""],
    constraint_loss: Float[Tensor, ""],
    parameters: Iterable[Tensor],
    *,
    rule: str | Rule = "rectify",
    state: ConstraintMomentum | None = None,
    constrained: Iterable[Tensor] | None = None,
    process_group: Any = None,
) -> Rectification:
    """Add to `.grad` the one gradient that a rule makes of two losses (FGR paper, algorithm 1, lines 16–22).

    Call it where you would call `main_loss.backward()`; gradients accumulate in the same way, so call
    `optimizer.zero_grad()` before. The gradients of all parameters are one long vector here: there is one dot product,
    not one per layer.

    Where a process group is initialised, both gradients are averaged over its ranks before the rule, whether the model
    is wrapped in DistributedDataParallel or not, so that all ranks write the same gradient. The constraint is then the
    mean of the ranks' constraints; `shiftcal.gather` gives every rank the whole batch's logits for a constraint of
    the whole batch.

    Args:
        main_loss: The loss to descend.
        constraint_loss: The loss that must not rise; its graph may share the forward pass of the main loss.
        parameters: What to differentiate for, for example `model.parameters()`. Frozen ones are left out.
        rule: A name in `shiftcal.gradients.RULES`, or a function of two flat gradients that returns one.
        state: Running mean of the constraint's gradient; None uses each step's own.
        constrained: The parameters whose gradient the rule changes, all by default. The others keep the main gradient,
            and the constraint's backward pass goes no further than it must.
        process_group: The ranks to average over; the default group if there is one. A group of this rank alone
            averages over nothing.

    Returns:
        Scalars that tell whether the two conflicted and how.

    Example:
        >>> import torch
        >>> w = torch.tensor([1.0, -1.0], requires_grad=True)
        >>> report = rectified_backward((w * torch.tensor([1.0, -1.0])).sum(), 2 * w[1], [w])
        >>> w.grad, report.conflict
        (tensor([1., 0.]), tensor(True))
    """
    pair = GradientPair(parameters, constrained=constrained)
    pair.add(main_loss, constraint_loss)
    return pair.backward(rule=rule, state=state, process_group=process_group)


class GradientPair:
    """Collects the gradients of two losses over micro-batches, for one rule per optimiser step.

    `rectified_backward` applies its rule to each call's gradients; here the rule sees their sum. Divide each
    micro-batch's losses by the number of micro-batches for the mean.

    Example:
        >>> import torch
        >>> w = torch.tensor([1.0, -1.0], requires_grad=True)
        >>> pair = GradientPair([w])
        >>> for x in (torch.tensor([1.0, -1.0]), torch.tensor([1.0, -3.0])):
        ...     pair.add((w * x).sum() / 2, w[1] / 2)
        >>> report = pair.backward()
        >>> w.grad, report.conflict
        (tensor([1., 0.]), tensor(True))
    """

    def __init__(self, parameters: Iterable[Tensor], *, constrained: Iterable[Tensor] | None = None) -> None:
        self._parameters, self._constrained = constrained_first(parameters, constrained)
        if not self._parameters:
            raise wrong("parameters", "at least one tensor that requires a gradient", "none")
        check_not_sharded(self._parameters)
        self._sum: Gradients | None = None

    def add(self, main_loss: Float[Tensor, ""], constraint_loss: Float[Tensor, ""]) -> None:
        """Add the gradients of one micro-batch's losses."""
        for name, loss in (("main_loss", main_loss), ("constraint_loss", constraint_loss)):
            if not isinstance(loss, Tensor) or loss.ndim != 0 or not loss.requires_grad:
                found: object = loss
                if isinstance(loss, Tensor):
                    found = f"one of shape {list(loss.shape)} with requires_grad={loss.requires_grad}"
                raise wrong(name, "a scalar tensor that requires a gradient", found)
        gradients = gradients_of_losses(main_loss, constraint_loss, self._parameters, self._constrained)
        if self._sum is None:
            self._sum = gradients
        else:
            self._sum = self._sum.flattened(self._parameters).add(gradients.flattened(self._parameters))

    def backward(
        self, *, rule: str | Rule = "rectify", state: ConstraintMomentum | None = None, process_group: Any = None
    ) -> Rectification:
        """Add to `.grad` what a rule makes of both sums, and start anew; see `rectified_backward`."""
        if self._sum is None:
            raise ValueError("GradientPair should have gradients to combine. Found none: call `add` first.")
        gradients, self._sum = mean_over_ranks(self._sum, self._parameters, process_group), None
        final, report = combine(gradients.vector, gradients.size, find_rule(rule), state)
        if report is None:
            raise TypeError("A pair of gradients should be reported on. Found no constraint.")
        write_gradients(final, self._parameters, gradients.used, gradients.rest, accumulate=True)
        return report
