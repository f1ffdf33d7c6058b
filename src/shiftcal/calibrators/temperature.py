"""Temperature scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from shiftcal._errors import wrong
from shiftcal.calibrators.base import Calibrator, minimise_nll, rows_at_once
from shiftcal.metrics.binning import bin_sums

GRID = torch.arange(10, 501, dtype=torch.float64) / 100  # 0.10, 0.11, …, 5.00


class TemperatureScaling(Calibrator):
    """Divide logits by one temperature T chosen on held-out data, softmax(z / T) (Guo et al., ICML 2017).

    T > 1 makes a model less sure of itself, T < 1 more so; the predicted class stays. By default T is the first point
    of the grid 0.10, 0.11, …, 5.00 with the lowest criterion, which is NLL or, as in the FGR paper's recipes, ECE
    with 15 bins. `search="lbfgs"` minimises the NLL without a grid, over log T: T is positive by construction. A T at
    an end of the grid tells that a better one may lie beyond.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0]])  # 98 % sure, 67 % right
        >>> scaling = TemperatureScaling().fit(logits, torch.tensor([0, 0, 1]))
        >>> scaling.temperature
        5.0
        >>> scaling(logits)[0]
        tensor([0.8000, 0.0000])
    """

    _keys = ("t",)

    def __init__(self, criterion: Literal["nll", "ece"] = "nll", search: Literal["grid", "lbfgs"] = "grid") -> None:
        super().__init__()
        if criterion not in ("nll", "ece"):
            raise wrong("criterion", "'nll' or 'ece'", repr(criterion))
        if search not in ("grid", "lbfgs"):
            raise wrong("search", "'grid' or 'lbfgs'", repr(search))
        if search == "lbfgs" and criterion != "nll":
            raise wrong("criterion", "'nll' with search 'lbfgs', since ECE has no gradient", repr(criterion))
        self.criterion, self.search = criterion, search

    def extra_repr(self) -> str:
        """Show how the temperature is found."""
        return f"criterion={self.criterion!r}, search={self.search!r}"

    @property
    def temperature(self) -> float:
        """The fitted temperature."""
        return float(self._fitted()["t"])

    def _fit(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        z = logits.sub_(logits.amax(1, keepdim=True))  # a copy already
        if self.search == "lbfgs":
            log_t, _ = minimise_nll(lambda log_t, part: part * (-log_t).exp(), z.new_zeros(()), z, targets)
            return {"t": log_t.exp()}
        if self.criterion == "nll":
            return {"t": GRID[_lowest_of_convex(lambda i: float(_nll(z, float(GRID[i]), targets)), len(GRID))]}
        # A number at a time: hundreds of small tensors between large ones would keep the heap from shrinking.
        values = [float(_ece(z, t, targets)) for t in GRID.tolist()]
        return {"t": GRID[values.index(min(values))]}

    def _calibrate(self, logits: Tensor, state: dict[str, Tensor]) -> Tensor:
        return logits / state["t"].to(logits.dtype)


def _lowest_of_convex(value: Callable[[int], float], count: int, stride: int = 16) -> int:
    """Return the first of the lowest values of a function that falls and then rises; most are never computed.

    NLL is convex in 1/t, and so falls and rises along any grid of t.
    """
    coarse = {i: value(i) for i in range(0, count, stride)}
    near = min(coarse, key=coarse.__getitem__)
    fine = {i: value(i) for i in range(max(near - stride + 1, 0), min(near + stride, count))}
    return min(fine, key=fine.__getitem__)


def _nll(z: Tensor, t: float, targets: Tensor) -> Tensor:
    rows = rows_at_once(z)
    parts = zip(z.split(rows), targets.split(rows), strict=True)
    return torch.stack([cross_entropy(part / t, own, reduction="sum") for part, own in parts]).sum() / len(targets)


def _ece(z: Tensor, t: float, targets: Tensor) -> Tensor:
    confidence = torch.cat([1 / (part / t).exp().sum(1) for part in z.split(rows_at_once(z))])  # z's largest entry is 0
    return bin_sums(confidence, z.argmax(1) == targets, bins=15).expected_error()
