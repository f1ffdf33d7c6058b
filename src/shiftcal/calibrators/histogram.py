"""Histogram binning."""

from __future__ import annotations

import torch
from torch import Tensor

from shiftcal._errors import check_count
from shiftcal.calibrators.base import Calibrator
from shiftcal.metrics.binning import bin_index, class_bin_sums

FLOOR = 1e-6  # a class that no bin has seen keeps this probability, so that its logarithm is finite


class HistogramBinning(Calibrator):
    """Replace each class's probability by its bin's rate of hits, then normalise (Zadrozny & Elkan, ICML 2001).

    Equal-width bins per class, right-closed; an empty bin keeps its middle. The predicted class may change. Returned
    logits are logarithms of the calibrated probabilities.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
        >>> binning = HistogramBinning().fit(logits, torch.tensor([0, 1, 1, 0]))  # right every other time
        >>> binning(logits).softmax(-1)[0].round(decimals=2)
        tensor([0.5000, 0.5000])
    """

    _keys = ("rate",)

    def __init__(self, bins: int = 15) -> None:
        super().__init__()
        check_count("bins", bins)
        self.bins = bins

    def extra_repr(self) -> str:
        """Show the number of bins."""
        return f"bins={self.bins}"

    def _fit(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        p = logits.softmax(-1)
        sums = class_bin_sums(p, targets, self.bins)
        middle = (torch.arange(self.bins, dtype=p.dtype, device=p.device) + 0.5) / self.bins
        rate = torch.where(sums.count > 0, sums.hits / sums.count.clamp(min=1), middle)
        return {"rate": rate}

    def _calibrate(self, logits: Tensor, state: dict[str, Tensor]) -> Tensor:
        rate = state["rate"]
        index = bin_index(logits.double().softmax(-1), rate.shape[1])
        return normalised_log(rate.T.gather(0, index)).to(logits.dtype)


def normalised_log(scores: Tensor) -> Tensor:
    """Return the logarithm of scores made to sum to 1."""
    scores = scores.clamp_min(FLOOR)
    return (scores / scores.sum(1, keepdim=True)).log()
