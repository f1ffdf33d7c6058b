"""What all calibrators share: checks, fitting once, saving and loading."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shiftcal._arrays import takes_arrays
from shiftcal._errors import wrong
from shiftcal._tensors import check_finite, check_indices, check_range, check_rows

C = TypeVar("C", bound="Calibrator")
_ELEMENTS = 2**16  # of logits at a time


class Calibrator(nn.Module, ABC):
    """A function of logits, fitted on held-out logits and targets; what was fitted are its buffers."""

    _keys: tuple[str, ...] = ()  # what a fitted state holds at least
    _more: str = "classes"  # a pattern of what else it may hold
    shift_invariant: ClassVar[bool] = True
    """Whether a constant added to a row's logits changes nothing: else logarithms of probabilities are no logits."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[str, float] = {}  # the state's scalars, read once

    @abstractmethod
    def _fit(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Find the state from float64 logits."""

    @abstractmethod
    def _calibrate(self, logits: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Map logits to logits."""

    @takes_arrays
    def fit(self: C, logits: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> C:
        """Fit on validation data, never on the test set; returns itself."""
        check_rows("logits", logits)
        check_indices(targets, len(logits))
        check_finite("logits", logits)
        check_range(targets, logits.shape[1])
        if bool((targets == targets[0]).all()):
            raise wrong("targets", "of at least two classes", f"class {int(targets[0])} alone")
        # Solvers need gradients, also where the caller has switched them off for good.
        with torch.autocast(logits.device.type, enabled=False), torch.inference_mode(False):
            state = self._fit(logits.detach().to(torch.float64, copy=True), targets.clone().long())
        self._set(state | {"classes": torch.tensor(logits.shape[1])})
        return self

    @takes_arrays
    def forward(self, logits: Float[Tensor, "n classes"]) -> Float[Tensor, "n classes"]:
        """Return calibrated logits: their softmax is the calibrated distribution."""
        check_rows("logits", logits)
        check_finite("logits", logits)
        fitted = self._fitted()
        classes = self._numbers.get("classes", logits.shape[1])
        if logits.shape[1] != classes:
            raise wrong("logits", f"of {classes:.0f} columns, as fitted", list(logits.shape))
        state = {name: tensor.to(logits.device) for name, tensor in fitted.items()}
        with torch.autocast(logits.device.type, enabled=False):
            return self._calibrate(logits, state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Which buffers there are, and their shapes, is known when something was fitted.
        state = {name.removeprefix(prefix): t for name, t in state_dict.items() if name.startswith(prefix)}
        odd = [name for name in state if name not in self._keys and not re.fullmatch(self._more, name)]
        if state and (odd or not set(self._keys) <= set(state)):
            raise wrong("state", f"that of {type(self).__name__}, with {', '.join(self._keys)}", sorted(state))
        if state:  # one that was not fitted has none: what is fitted here stays, and torch tells what is missing
            self._set(state)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _set(self, state: dict[str, Tensor]) -> None:
        for name in list(self._buffers):
            delattr(self, name)
        for name, tensor in state.items():
            self.register_buffer(name, tensor.clone())
        self._numbers = {name: float(tensor) for name, tensor in state.items() if tensor.ndim == 0}

    def _fitted(self) -> dict[str, Tensor]:
        state = {name: tensor for name, tensor in self._buffers.items() if tensor is not None}
        if not state:
            name = type(self).__name__
            raise ValueError(f"{name} should be fitted before use. Found nothing fitted: call `fit` first.")
        return state


def rows_at_once(logits: Tensor) -> int:
    """Return how many rows to take at a time, so that what is computed of them is small beside all of them."""
    return max(_ELEMENTS // logits.shape[1], 1)


def minimise_nll(
    scale: Callable[[Tensor, Tensor], Tensor], start: Tensor, logits: Tensor, targets: Tensor, *, steps: int = 200
) -> tuple[Tensor, float]:
    """Minimise the NLL of `scale(parameters, logits)` by L-BFGS; returns the parameters and the NLL."""
    rows = rows_at_once(logits)
    parts = list(zip(logits.split(rows), targets.split(rows), strict=True))
    parameters = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [parameters], max_iter=steps, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def losses() -> Iterator[Tensor]:
        for part, own in parts:
            yield cross_entropy(scale(parameters, part), own, reduction="sum") / len(targets)

    def closure() -> float:
        optimizer.zero_grad()
        return sum(_backward(loss) for loss in losses())

    with torch.enable_grad():
        optimizer.step(closure)
    with torch.no_grad():
        return parameters.detach(), sum(float(loss) for loss in losses())


def _backward(loss: Tensor) -> float:
    loss.backward()
    return float(loss.detach())
