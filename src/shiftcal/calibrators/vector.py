"""Vector scaling."""

from __future__ import annotations

import torch
from torch import Tensor

from shiftcal.calibrators.base import Calibrator, minimise_nll


class VectorScaling(Calibrator):
    """Scale and shift each class's logit, softmax(w ⊙ z + b), by the lowest NLL (Guo et al., ICML 2017).

    The predicted class may change. It has 2·K parameters: with few validation samples per class, prefer a temperature.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [0.0, 4.0]])
        >>> scaling = VectorScaling().fit(logits, torch.tensor([0, 1, 1, 0]))  # right every other time
        >>> scaling(logits).softmax(-1)[0].round(decimals=2)
        tensor([0.5000, 0.5000])
    """

    _keys = ("weight", "bias")
    shift_invariant = False

    def _fit(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        start = torch.stack([torch.ones_like(logits[0]), torch.zeros_like(logits[0])])
        (weight, bias), _ = minimise_nll(lambda p, part: part * p[0] + p[1], start, logits, targets)
        return {"weight": weight, "bias": bias}

    def _calibrate(self, logits: Tensor, state: dict[str, Tensor]) -> Tensor:
        return logits * state["weight"].to(logits.dtype) + state["bias"].to(logits.dtype)
