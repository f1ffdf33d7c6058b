"""The metrics as torchmetrics: they take probabilities and keep sums, which ranks add up.

Nothing grows with the number of samples. Metrics that need all predictions at once (adaptive and smooth ECE, AURC) have
no sums and are not here. Those with equal sums share them in a `MetricCollection` (compute groups).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._errors import check_count, wrong
from shiftcal.integrations._extras import missing
from shiftcal.metrics._inputs import check_inputs
from shiftcal.metrics.binning import BinSums, bin_sums, class_bin_sums, top_label
from shiftcal.metrics.scores import sample_brier, sample_nll

try:
    from torchmetrics import Metric
except (ImportError, RuntimeError) as error:  # RuntimeError: it imports torchvision, which may be one for another torch
    raise missing("torchmetrics", error) from error

__all__ = [
    "ECE",
    "MCE",
    "NLL",
    "Accuracy",
    "Brier",
    "BrierCalibration",
    "CalibrationSummary",
    "ClasswiseECE",
    "ConfidenceGap",
]

_PARTS = ("count", "confidence", "hits")


class _Sums(Metric):
    """A metric that is a function of sums over samples."""

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False

    def _add_sums(self, name: str, *shape: int) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def _add_to(self, name: str, values: Tensor) -> None:
        setattr(self, name, getattr(self, name) + values)

    def update(self, probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> None:
        """Take in one batch."""
        check_inputs(probabilities, targets)
        self._take(probabilities.detach(), targets)

    def _take(self, probabilities: Tensor, targets: Tensor) -> None:
        raise NotImplementedError


class _OfTopLabel(_Sums):
    """A metric of the predicted class's confidence, in bins.

    Args:
        bins: Number of bins.
        options: Those of torchmetrics' `Metric`.
    """

    def __init__(self, bins: int = 15, **options: Any) -> None:
        super().__init__(**options)
        check_count("bins", bins)
        self.bins = bins
        for part in _PARTS:
            self._add_sums(part, bins)

    @property
    def _top(self) -> BinSums:
        return BinSums(self.count, self.confidence, self.hits)

    def _take(self, probabilities: Tensor, targets: Tensor) -> None:
        _add_bins(self, "", bin_sums(*top_label(probabilities, targets), self.bins))


class _OfClasses(_Sums):
    """A metric of every class's probability, in bins.

    Args:
        num_classes: Number of classes.
        bins: Number of bins.
        options: Those of torchmetrics' `Metric`.
    """

    def __init__(self, num_classes: int, bins: int = 15, **options: Any) -> None:
        super().__init__(**options)
        check_count("num_classes", num_classes, least=2)
        check_count("bins", bins)
        self.num_classes, self.bins = num_classes, bins
        for part in _PARTS:
            self._add_sums(f"class_{part}", num_classes, bins)

    @property
    def _by_class(self) -> BinSums:
        return BinSums(self.class_count, self.class_confidence, self.class_hits)

    def _take(self, probabilities: Tensor, targets: Tensor) -> None:
        if probabilities.shape[1] != self.num_classes:
            raise wrong("probabilities", f"of {self.num_classes} columns", list(probabilities.shape))
        _add_bins(self, "class_", class_bin_sums(probabilities, targets, self.bins))


class _Mean(_Sums):
    """The mean of a score over samples.

    Args:
        options: Those of torchmetrics' `Metric`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # A name of its own: a collection lets metrics share states of the same name that happen to be equal at first.
        self._name = f"{type(self).__name__.lower()}_sum"
        self._add_sums(self._name)
        self._add_sums("number")

    def compute(self) -> Tensor:
        """Return the mean; NaN before the first batch."""
        mean: Tensor = getattr(self, self._name) / self.number
        return mean

    def _take(self, probabilities: Tensor, targets: Tensor) -> None:
        self._add_to(self._name, self._scores(probabilities, targets).double().sum())
        self._add_to("number", torch.tensor(float(len(targets)), dtype=torch.float64, device=targets.device))

    def _scores(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError


class ECE(_OfTopLabel):
    """The expected calibration error, see `metrics.ece`.

    Example:
        >>> metric = ECE()
        >>> metric.update(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
        >>> metric.compute()
        tensor(0.2500, dtype=torch.float64)
    """

    def compute(self) -> Tensor:
        """Return the error as a fraction; NaN before the first batch."""
        return self._top.expected_error()


class MCE(_OfTopLabel):
    """The maximum calibration error, see `metrics.mce`."""

    def compute(self) -> Tensor:
        """Return the error as a fraction; NaN before the first batch."""
        return _largest_gap(self._top)


class ConfidenceGap(_OfTopLabel):
    """Mean confidence minus accuracy, see `metrics.confidence_gap`: above 0, too sure."""

    higher_is_better = None

    def compute(self) -> Tensor:
        """Return the gap as a fraction; NaN before the first batch."""
        gap: Tensor = (self.confidence - self.hits).sum() / self.count.sum()
        return gap


class ClasswiseECE(_OfClasses):
    """The classwise calibration error, see `metrics.classwise_ece`."""

    def compute(self) -> Tensor:
        """Return the error as a fraction; NaN before the first batch."""
        return self._by_class.expected_error().mean()


class BrierCalibration(_OfClasses):
    """The calibration part of the Brier score, see `metrics.brier_calibration`."""

    def compute(self) -> Tensor:
        """Return the part as a fraction; NaN before the first batch."""
        sums = self._by_class
        squared = (sums.confidence - sums.hits).square() / sums.count.clamp(min=1)
        return squared.sum() / sums.count[0].sum()


class Accuracy(_Mean):
    """The share of samples whose most probable class is the true one, see `metrics.accuracy`."""

    higher_is_better = True

    def _scores(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        return top_label(probabilities, targets)[1]


class NLL(_Mean):
    """The negative log-likelihood, see `metrics.nll`."""

    def _scores(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        return sample_nll(probabilities, targets)


class Brier(_Mean):
    """The Brier score, see `metrics.brier`."""

    def _scores(self, probabilities: Tensor, targets: Tensor) -> Tensor:
        return sample_brier(probabilities, targets)


class CalibrationSummary(_OfClasses):
    """What `metrics.CalibrationMeter` computes, in one metric: accuracy, nll, brier, ece, mce and classwise_ece.

    Args:
        num_classes: Number of classes.
        bins: Number of bins.
        options: Those of torchmetrics' `Metric`.
    """

    def __init__(self, num_classes: int, bins: int = 15, **options: Any) -> None:
        super().__init__(num_classes, bins, **options)
        for part in _PARTS:
            self._add_sums(part, bins)
        self._add_sums("scores", 2)

    def compute(self) -> dict[str, Tensor]:
        """Return every metric as a fraction; NaN before the first batch."""
        top, n = BinSums(self.count, self.confidence, self.hits), self.count.sum()
        return {
            "accuracy": self.hits.sum() / n,
            "nll": self.scores[0] / n,
            "brier": self.scores[1] / n,
            "ece": top.expected_error(),
            "mce": _largest_gap(top),
            "classwise_ece": self._by_class.expected_error().mean(),
        }

    def _take(self, probabilities: Tensor, targets: Tensor) -> None:
        super()._take(probabilities, targets)
        _add_bins(self, "", bin_sums(*top_label(probabilities, targets), self.bins))
        scores = (sample_nll(probabilities, targets).sum(), sample_brier(probabilities, targets).sum())
        self._add_to("scores", torch.stack(scores))


def _add_bins(metric: _Sums, prefix: str, sums: BinSums) -> None:
    for part in _PARTS:
        metric._add_to(prefix + part, getattr(sums, part))


def _largest_gap(sums: BinSums) -> Tensor:
    return torch.where(sums.count.sum() > 0, sums.gap().max(), torch.nan)
