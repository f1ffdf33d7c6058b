"""The running mean of the constraint's gradient."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shiftcal._errors import wrong


class ConstraintMomentum(nn.Module):
    """Carry the running mean of the constraint's gradient, m ← β·m + (1 − β)·g, from step to step.

    The dot product and the projection then use m instead of the gradient of one batch, which is mostly noise.
    It starts at zero; the projection does not depend on its scale. A non-finite gradient leaves it as it is. Its
    `state_dict` belongs into a checkpoint beside the optimiser's.

    Example:
        >>> momentum = ConstraintMomentum(beta=0.5)
        >>> momentum(torch.tensor([2.0, 0.0]))
        tensor([1., 0.])
    """

    mean: Tensor | None

    def __init__(self, beta: float) -> None:
        super().__init__()
        if not 0 <= beta < 1:
            raise wrong("beta", "in [0, 1)", beta)
        self.beta = beta
        self.register_buffer("mean", None)

    def extra_repr(self) -> str:
        """Show β."""
        return f"beta={self.beta}"

    def forward(self, gradient: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Take in one gradient and return the running mean."""
        if self.mean is None:
            self.mean = torch.zeros_like(gradient)
        elif (self.mean.device, self.mean.dtype) != (gradient.device, gradient.dtype):  # loaded from a checkpoint
            self.mean = self.mean.to(gradient)
        if self.mean.shape != gradient.shape:
            raise wrong("gradient", f"of length {len(self.mean)}, as before", len(gradient))
        finite = gradient.dot(gradient).isfinite()
        # In place, so that a captured step finds it where it left it.
        return self.mean.copy_((self.beta * self.mean + (1 - self.beta) * gradient).where(finite, self.mean))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # The length is known from the first gradient on, or from a checkpoint.
        stored = state_dict.get(f"{prefix}mean")
        if stored is not None:
            here = stored if self.mean is None else self.mean
            self.mean = torch.empty_like(stored, device=here.device, dtype=here.dtype)
        super()._load_from_state_dict(state_dict, prefix, *rest)
