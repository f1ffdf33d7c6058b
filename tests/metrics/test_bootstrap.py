from functools import partial

import pytest
import torch

from shiftcal import metrics
from shiftcal.metrics import CalibrationMeter, bootstrap_interval

interval = partial(bootstrap_interval, progress=False)


def case(n: int, generator: torch.Generator, sharpness: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions that are too sure by a factor on their logits; 1 is calibrated."""
    honest = 1.2 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return (sharpness * honest).softmax(-1), torch.multinomial(honest.softmax(-1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("method", ["basic", "percentile"])
def test_of_a_mean_is_the_normal_interval(method: str) -> None:
    p, y = case(2000, torch.Generator().manual_seed(0), 1.0)
    value, low, high = interval(metrics.accuracy, p, y, method=method)
    assert value == metrics.accuracy(p, y)
    margin = 1.96 * (value * (1 - value) / 2000) ** 0.5
    assert low == pytest.approx(value - margin, abs=0.12 * margin)
    assert high == pytest.approx(value + margin, abs=0.12 * margin)


def coverage(sharpness: float, method: str, *, draws: int = 60, n: int = 1000) -> float:
    generator = torch.Generator().manual_seed(0)
    truth = metrics.ece(*case(400_000, generator, sharpness))
    hits = 0
    for seed in range(draws):
        p, y = case(n, generator, sharpness)
        _, low, high = interval(metrics.ece, p, y, method=method, resamples=150, seed=seed)
        hits += low <= truth <= high
    return hits / draws


@pytest.mark.slow
def test_of_the_calibration_error_contains_the_truth_about_as_often_as_it_says() -> None:
    assert coverage(2.0, "basic") >= 0.85


@pytest.mark.slow
def test_the_basic_interval_is_better_than_the_percentile_one_for_a_calibrated_model() -> None:
    assert coverage(1.0, "basic") > 0.4
    assert coverage(1.0, "percentile") == 0


@pytest.mark.slow
def test_level_seed_and_bound() -> None:
    p, y = case(300, torch.Generator().manual_seed(0), 1.0)
    narrow, wide = (interval(metrics.nll, p, y, level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.value < narrow.high < wide.high
    assert interval(metrics.nll, p, y, seed=3) == interval(metrics.nll, p, y, seed=3)
    assert interval(metrics.nll, p, y, seed=3) != interval(metrics.nll, p, y, seed=4)
    free, bounded = (interval(metrics.ece, p, y, level=0.999, bounds=b) for b in ((-1.0, 1.0), (0.0, 0.03)))
    assert free.low < 0 == bounded.low
    assert free.high > 0.03 == bounded.high
    negative = interval(lambda p, y: -metrics.nll(p, y), p, y)
    assert negative.low < negative.value < negative.high < 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 1.0}, r"`level` should be in \(0, 1\)"),
        ({"resamples": 1}, "`resamples` should be an integer of at least 2"),
        ({"method": "bca"}, "`method` should be 'basic' or 'percentile'. Found `method = 'bca'`"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interval(metrics.ece, torch.tensor([[0.5, 0.5]]), torch.tensor([0]), **options)


def test_class_reliability_is_what_classwise_ece_sums() -> None:
    p, y = case(500, torch.Generator().manual_seed(0), 2.0)
    meter = CalibrationMeter(5)
    meter.update(p, y)
    classes = meter.class_reliability()
    assert len(classes) == 5
    total = 0.0
    for k, bins in enumerate(classes):
        inside = (p[:, k] > 0.2) & (p[:, k] <= 4 / 15)  # the fourth of fifteen bins
        assert bins["count"][3] == inside.sum()
        assert bins["confidence"][3] == pytest.approx(p[inside, k].mean().item())
        assert bins["accuracy"][3] == pytest.approx((y[inside] == k).double().mean().item())
        gaps = zip(bins["count"], bins["confidence"], bins["accuracy"], strict=True)
        total += sum(count / 500 * abs(accuracy - confidence) for count, confidence, accuracy in gaps)
    assert total / 5 == pytest.approx(metrics.classwise_ece(p, y))
    with pytest.raises(ValueError, match="should have seen at least one batch"):
        CalibrationMeter(5).class_reliability()
