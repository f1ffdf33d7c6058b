"""Temperature scaling."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._checks import wrong
from shiftcal._tensors import check_finite, check_indices, check_range, check_rows
from shiftcal.metrics.binning import bin_sums

GRID = torch.arange(10, 501, dtype=torch.float64) / 100  # 0.10, 0.11, …, 5.00


class TemperatureScaling:
    """Divide logits by one temperature T chosen on held-out data (Guo et al., ICML 2017): softmax(z / T).

    T > 1 makes a model less sure of itself, T < 1 more so; the predicted class stays. T is the first point of the grid
    0.10, 0.11, …, 5.00 with the lowest criterion, which is NLL or, as in the paper's recipes, ECE with 15 bins.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])  # 98 % sure, 67 % right
        >>> scaling = TemperatureScaling().fit(logits, torch.tensor([0, 0, 1]))
        >>> scaling.temperature
        5.0
        >>> scaling(logits)[0]
        tensor([0.8000, 0.0000])
    """

    def __init__(self, criterion: Literal["nll", "ece"] = "nll", search: Literal["grid"] = "grid") -> None:
        if criterion not in ("nll", "ece"):
            raise wrong("criterion", "'nll' or 'ece'", repr(criterion))
        if search != "grid":
            raise wrong("search", "'grid'", repr(search))
        self.criterion, self.search = criterion, search
        self._temperature: float | None = None

    def __repr__(self) -> str:
        return f"TemperatureScaling(criterion={self.criterion!r}, search={self.search!r})"

    @property
    def temperature(self) -> float:
        """The fitted temperature."""
        if self._temperature is None:
            raise ValueError("TemperatureScaling should be fitted before use. Found no temperature: call `fit` first.")
        return self._temperature

    def fit(self, logits: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> TemperatureScaling:
        """Choose the temperature on validation logits, never on the test set."""
        check_rows("logits", logits)
        check_indices(targets, len(logits))
        check_finite("logits", logits)
        check_range(targets, logits.shape[1])
        z = logits.detach().double()
        z = z - z.amax(1, keepdim=True)
        evaluate = _nll if self.criterion == "nll" else _ece
        values = torch.stack([evaluate(z / t, targets) for t in GRID.tolist()])
        self._temperature = GRID[int(values.argmin())].item()
        return self

    def __call__(self, logits: Float[Tensor, "n classes"]) -> Float[Tensor, "n classes"]:
        """Scale logits."""
        check_rows("logits", logits)
        check_finite("logits", logits)
        return logits / self.temperature


def _nll(z: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(z, targets.long())


def _ece(z: Tensor, targets: Tensor) -> Tensor:
    confidence = 1 / z.exp().sum(1)  # z's largest entry is 0
    return bin_sums(confidence, z.argmax(1) == targets, bins=15).expected_error()
