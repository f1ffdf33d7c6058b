"""A meter that sums calibration statistics over batches and ranks."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count, wrong
from shiftcal.metrics._inputs import check_inputs
from shiftcal.metrics.adaptive_ece import adaptive_ece
from shiftcal.metrics.binning import BinSums, bin_sums, class_bin_sums, top_label
from shiftcal.metrics.scores import sample_brier, sample_nll


class CalibrationMeter:
    """Accumulate accuracy, NLL, Brier, ECE, MCE and classwise ECE in O(bins · classes) memory, exactly.

    The result does not depend on how samples were batched: everything kept is a float64 sum, and `merge` adds sums.
    `adaptive=True` adds the adaptive ECE, which needs all probabilities and keeps them.

    Example:
        >>> meter = CalibrationMeter(num_classes=2)
        >>> meter.update(torch.tensor([[0.75, 0.25]]), torch.tensor([0]))
        >>> meter.update(torch.tensor([[0.75, 0.25]]), torch.tensor([1]))
        >>> round(meter.compute()["ece"], 4)
        0.25
    """

    def __init__(self, num_classes: int, bins: int = 15, adaptive: bool = False) -> None:
        check_count("num_classes", num_classes, least=2)
        check_count("bins", bins)
        self.num_classes, self.bins, self.adaptive = num_classes, bins, adaptive
        self._top = BinSums(*torch.zeros(3, bins, dtype=torch.float64))
        self._by_class = BinSums(*torch.zeros(3, num_classes, bins, dtype=torch.float64))
        self._scores = torch.zeros(2, dtype=torch.float64)
        self._kept: list[tuple[Tensor, Tensor]] = []

    def __repr__(self) -> str:
        return f"CalibrationMeter(num_classes={self.num_classes}, bins={self.bins}, adaptive={self.adaptive})"

    @takes_arrays
    def update(self, probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> None:
        """Take in one batch."""
        check_inputs(probabilities, targets)
        if probabilities.shape[1] != self.num_classes:
            raise wrong("probabilities", f"of {self.num_classes} columns", list(probabilities.shape))
        probabilities = probabilities.detach()
        self._add(
            bin_sums(*top_label(probabilities, targets), self.bins),
            class_bin_sums(probabilities, targets, self.bins),
            torch.stack([sample_nll(probabilities, targets).sum(), sample_brier(probabilities, targets).sum()]),
        )
        if self.adaptive:
            self._kept.append((probabilities.clone(), targets.clone()))

    def merge(self, other: CalibrationMeter) -> CalibrationMeter:
        """Add another meter's samples to this one and return it."""
        mine, theirs = repr(self), repr(other)
        if mine != theirs:
            raise wrong("other", mine, theirs)
        self._add(other._top, other._by_class, other._scores)
        self._kept += other._kept
        return self

    def compute(self) -> dict[str, float]:
        """Return every metric as a fraction."""
        n = self._count()
        nll, brier = (self._scores / n).tolist()
        result = {
            "accuracy": float(self._top.hits.sum() / n),
            "nll": nll,
            "brier": brier,
            "ece": float(self._top.expected_error()),
            "mce": float(self._top.gap().max()),
            "classwise_ece": float(self._by_class.expected_error().mean()),
        }
        if self.adaptive:
            device = self._scores.device
            probabilities, targets = (
                torch.cat([p.to(device) for p in parts]) for parts in zip(*self._kept, strict=True)
            )
            result["adaptive_ece"] = adaptive_ece(probabilities, targets, bins=self.bins)
        return result

    def reliability(self) -> dict[str, list[float]]:
        """Return per bin the number of samples, the mean confidence and the accuracy (0 where empty)."""
        self._count()
        return _reliability(self._top)

    def class_reliability(self) -> list[dict[str, list[float]]]:
        """Return the same for every class by itself: all samples are binned by its probability.

        "accuracy" is then how often the class is the true one.
        """
        self._count()
        sums = self._by_class
        return [_reliability(BinSums(sums.count[k], sums.confidence[k], sums.hits[k])) for k in range(self.num_classes)]

    def _count(self) -> Tensor:
        n = self._top.count.sum()
        if n == 0:
            raise ValueError("CalibrationMeter should have seen at least one batch. Found none: call `update` first.")
        return n

    def _add(self, top: BinSums, by_class: BinSums, scores: Tensor) -> None:
        # The meter's sums follow the batches to their device.
        self._top, self._by_class = self._top.merge(top), self._by_class.merge(by_class)
        self._scores = self._scores.to(scores.device) + scores


def _reliability(sums: BinSums) -> dict[str, list[float]]:
    size = sums.count.clamp(min=1)
    return {
        "count": sums.count.tolist(),
        "confidence": (sums.confidence / size).tolist(),
        "accuracy": (sums.hits / size).tolist(),
    }
