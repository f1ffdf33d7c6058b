import sys
from pathlib import Path

import pytest
import torch
from torchmetrics import MetricCollection

from shiftcal import metrics
from shiftcal.integrations import torchmetrics

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import metric_ranks
from starting import start

OF_PACKAGE = {
    "Accuracy": metrics.accuracy,
    "NLL": metrics.nll,
    "Brier": metrics.brier,
    "BrierCalibration": metrics.brier_calibration,
    "ECE": metrics.ece,
    "MCE": metrics.mce,
    "ClasswiseECE": metrics.classwise_ece,
    "ConfidenceGap": metrics.confidence_gap,
}


def expected() -> dict[str, float]:
    probabilities, targets = (torch.cat(parts) for parts in zip(*metric_ranks.batches(), strict=True))
    meter = metrics.CalibrationMeter(metric_ranks.CLASSES)
    meter.update(probabilities, targets)
    own = {name: function(probabilities, targets) for name, function in OF_PACKAGE.items()}
    return own | meter.compute()  # CalibrationSummary's keys are the meter's


def test_every_metric_is_that_of_the_package() -> None:
    assert {*OF_PACKAGE, "CalibrationSummary"} == set(torchmetrics.__all__)
    assert {name: float(value) for name, value in metric_ranks.computed(0, 1).items()} == pytest.approx(expected())


@pytest.mark.slow
def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    start(HERE / "metric_ranks.py", tmp_path, ranks=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert {name: float(value) for name, value in found.items()} == pytest.approx(expected(), abs=1e-12)


def test_a_collection_shares_what_is_equal() -> None:
    collection = MetricCollection(metric_ranks.metrics())
    sure = torch.eye(metric_ranks.CLASSES)  # Brier and NLL are both 0: no reason to share
    collection.update(sure, torch.arange(metric_ranks.CLASSES))
    groups = sorted(sorted(group) for group in collection.compute_groups.values())
    assert ["BrierCalibration", "ClasswiseECE"] in groups
    assert ["ConfidenceGap", "ECE", "MCE"] in groups
    assert ["Brier"] in groups
    assert ["NLL"] in groups
    assert ["Accuracy"] in groups
    for probabilities, targets in metric_ranks.batches():
        collection.update(probabilities, targets)
    found = {name: float(value) for name, value in collection.compute().items()}
    apart = metric_ranks.metrics()
    for metric in apart.values():
        metric.update(sure, torch.arange(metric_ranks.CLASSES))
        for probabilities, targets in metric_ranks.batches():
            metric.update(probabilities, targets)
    assert found["NLL"] == float(apart["NLL"].compute())
    assert found["MCE"] == float(apart["MCE"].compute())


def test_memory_does_not_grow() -> None:
    for metric in metric_ranks.metrics().values():
        sizes = []
        for probabilities, targets in metric_ranks.batches():
            metric.update(probabilities, targets)
            sizes.append(sum(value.numel() for value in metric.metric_state.values()))
        assert len(set(sizes)) == 1
        assert sizes[0] > 0


def test_forward_is_the_batchs_value_and_reset_forgets() -> None:
    metric = torchmetrics.ECE(bins=10)
    (first, second, *_) = metric_ranks.batches()
    assert float(metric(*first)) == pytest.approx(metrics.ece(*first, bins=10))
    assert float(metric(*second)) == pytest.approx(metrics.ece(*second, bins=10))
    metric.reset()
    metric.update(*second)
    assert float(metric.compute()) == pytest.approx(metrics.ece(*second, bins=10))


def test_without_a_batch_there_is_no_value() -> None:
    for metric in metric_ranks.metrics().values():
        with pytest.warns(UserWarning, match="before the ``update`` method"):
            value = metric.compute()
        values = value.values() if isinstance(value, dict) else [value]
        assert all(torch.isnan(number) for number in values)


def test_logits_and_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"should be in \[0, 1\] \(apply softmax to logits first\)"):
        torchmetrics.ECE().update(torch.tensor([[3.0, -1.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="`probabilities` should be of 3 columns"):
        torchmetrics.ClasswiseECE(3).update(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    with pytest.raises(ValueError, match="`bins` should be an integer of at least 1"):
        torchmetrics.ECE(bins=0)
