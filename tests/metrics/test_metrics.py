import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shiftcal import metrics
from shiftcal.metrics import CalibrationMeter
from shiftcal.metrics.binning import bin_index

sys.path.insert(0, str(Path(__file__).parent))
import metric_formulas as reference

BINNED = ["ece", "mce", "classwise_ece", "adaptive_ece"]
SCORES = ["accuracy", "nll", "brier"]


def random_case(n: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p = (3 * torch.randn(n, classes, generator=generator, dtype=torch.float64)).softmax(-1)
    return p, torch.randint(0, classes, (n,), generator=generator)


def rows(*values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def adversarial_cases() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    ties = torch.full((30, 4), 0.25, dtype=torch.float64)
    fifteenths = torch.arange(16, dtype=torch.float64) / 15
    edges = torch.stack([fifteenths, 1 - fifteenths], dim=1)
    return {
        "ties": (ties, torch.arange(30) % 4),
        "confidence exactly 0 and 1": (torch.eye(3, dtype=torch.float64).repeat(4, 1), torch.arange(12) % 2),
        "confidences on the edges of the bins": (edges, torch.arange(16) % 2),
        "one sample": (rows([0.2, 0.8]), torch.tensor([1])),
        "one class present": (random_case(40, 5)[0], torch.full((40,), 3)),
        "fewer samples than bins": random_case(7, 3, seed=1),
        "float32 at an edge": (torch.tensor([[0.2, 0.8], [1 / 3, 2 / 3]]), torch.tensor([0, 1])),
        "many": random_case(2000, 10, seed=2),
        "two classes": random_case(333, 2, seed=3),
    }


@pytest.mark.parametrize("name", BINNED)
@pytest.mark.parametrize("case", adversarial_cases())
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_binned_metrics_are_their_formulas(name: str, case: str, bins: int) -> None:
    p, y = adversarial_cases()[case]
    expected = getattr(reference, name)(p.double().numpy(), y.numpy(), bins)
    assert getattr(metrics, name)(p, y, bins=bins) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("case", adversarial_cases())
def test_scores_are_their_formulas(name: str, case: str) -> None:
    p, y = adversarial_cases()[case]
    expected = getattr(reference, name)(p.double().numpy(), y.numpy())
    assert getattr(metrics, name)(p, y) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_confidence_one_is_in_the_last_bin_and_not_in_one_of_its_own() -> None:
    # torchmetrics #3510: 0.95 (wrong) and 1.0 (right) share the last bin, so that their errors partly cancel.
    p, y = rows([0.95, 0.05], [1.0, 0.0]), torch.tensor([1, 0])
    assert metrics.ece(p, y) == pytest.approx(abs(0.5 - 0.975))


def test_an_edge_belongs_to_the_bin_below_it() -> None:
    # 0.8 and 0.75 share the bin (0.7, 0.8], so that their errors partly cancel.
    p, y = rows([0.8, 0.2], [0.75, 0.25]), torch.tensor([1, 0])
    assert metrics.ece(p, y, bins=10) == pytest.approx(abs(0.5 - 0.775))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [3, 5, 15])
def test_edges_are_edges_in_every_type(dtype: torch.dtype, bins: int) -> None:
    edges = (torch.arange(1, bins, dtype=torch.float64) / bins).to(dtype)
    below, above = (torch.nextafter(edges, torch.full_like(edges, end)) for end in (0, 1))
    expected = torch.arange(bins - 1)
    assert torch.equal(bin_index(edges, bins), expected)
    assert torch.equal(bin_index(below, bins), expected)
    assert torch.equal(bin_index(above, bins), expected + 1)
    p, y = torch.tensor([[0.8, 0.2], [0.7, 0.3]], dtype=dtype), torch.tensor([0, 1])
    assert metrics.ece(p, y, bins=5) == pytest.approx(0.25)


def test_perfectly_calibrated_model_has_no_error() -> None:
    p = rows([0.75, 0.25]).repeat(4, 1)
    y = torch.tensor([0, 0, 0, 1])
    for name in BINNED[:3]:
        assert getattr(metrics, name)(p, y) == pytest.approx(0)
    assert metrics.adaptive_ece(p, y, bins=1) == pytest.approx(0)


def test_nll_of_probability_zero_is_finite() -> None:
    assert metrics.nll(rows([1.0, 0.0]), torch.tensor([1])) == pytest.approx(708.396, abs=1e-2)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(2, 6), st.integers(1, 20), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_meter_does_not_depend_on_batching(sizes: list[int], classes: int, bins: int, seed: int) -> None:
    p, y = random_case(sum(sizes), classes, seed)
    meter = CalibrationMeter(classes, bins, adaptive=True)
    for batch, targets in zip(p.split(sizes), y.split(sizes), strict=True):
        meter.update(batch, targets)
    expected = {name: getattr(metrics, name)(p, y, bins=bins) for name in BINNED}
    expected |= {name: getattr(metrics, name)(p, y) for name in SCORES}
    assert meter.compute() == pytest.approx(expected, rel=1e-12, abs=1e-15)


@given(st.lists(st.integers(1, 30), min_size=3, max_size=3), st.integers(0, 99))
@settings(deadline=None, max_examples=25)
def test_merging_is_associative(sizes: list[int], seed: int) -> None:
    p, y = random_case(sum(sizes), 4, seed)

    def meters() -> list[CalibrationMeter]:
        made = [CalibrationMeter(4, adaptive=True) for _ in sizes]
        for meter, batch, targets in zip(made, p.split(sizes), y.split(sizes), strict=True):
            meter.update(batch, targets)
        return made

    a, b, c = meters()
    left = a.merge(b).merge(c).compute()
    a, b, c = meters()
    right = a.merge(b.merge(c)).compute()
    assert left == pytest.approx(right, rel=1e-12)
    assert left["ece"] == pytest.approx(metrics.ece(p, y), rel=1e-12)


def test_meter_memory_does_not_grow() -> None:
    meter = CalibrationMeter(10)

    def size() -> int:
        return sum(t.numel() for t in (meter._top.count, meter._by_class.count, meter._scores)) + len(meter._kept)

    before = size()
    for seed in range(5):
        meter.update(*random_case(100, 10, seed))
    assert size() == before


def test_meter_keeps_its_own_copy() -> None:
    p, y = random_case(50, 3)
    meter = CalibrationMeter(3, adaptive=True)
    meter.update(p, y)
    before = meter.compute()
    p.copy_(p.flip(1))
    assert meter.compute() == before


def test_reliability_bins() -> None:
    meter = CalibrationMeter(2, bins=10)
    meter.update(rows([0.75, 0.25], [0.71, 0.29], [0.95, 0.05]), torch.tensor([0, 1, 0]))
    bins = meter.reliability()
    assert bins["count"] == [0, 0, 0, 0, 0, 0, 0, 2, 0, 1]
    assert bins["confidence"][7] == pytest.approx(0.73)
    assert bins["accuracy"][7] == 0.5


def test_meter_refuses() -> None:
    with pytest.raises(ValueError, match="should have seen at least one batch"):
        CalibrationMeter(3).compute()
    with pytest.raises(ValueError, match=r"`other` should be CalibrationMeter\(num_classes=3, bins=15"):
        CalibrationMeter(3).merge(CalibrationMeter(3, bins=10))
    with pytest.raises(ValueError, match="`num_classes` should be an integer of at least 2"):
        CalibrationMeter(1)
    with pytest.raises(ValueError, match="`probabilities` should be of 3 columns"):
        CalibrationMeter(3).update(rows([0.5, 0.5]), torch.tensor([0]))


def all_metrics() -> list[object]:
    return [getattr(metrics, name) for name in BINNED + SCORES] + [lambda p, y: CalibrationMeter(2).update(p, y)]


GOOD, TARGET = rows([0.5, 0.5]), torch.tensor([1])


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("metric", all_metrics(), ids=[*BINNED, *SCORES, "meter"])
@pytest.mark.parametrize(
    ("p", "y", "message"),
    [
        (
            rows([float("nan"), 0.5]),
            TARGET,
            "`probabilities` should be finite. Found `probabilities = NaN or infinity`",
        ),
        (
            rows([2.0, -1.0]),
            TARGET,
            r"in \[0, 1\] \(apply softmax to logits first\). Found `probabilities = \[-1, 2\]`",
        ),
        (rows([0.5, 0.1]), TARGET, "rows that sum to 1"),
        (rows([0.5, 0.49]), TARGET, "rows that sum to 1"),
        (rows([0.9, 0.6]), TARGET, "rows that sum to 1"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), "N ≥ 1 and K ≥ 2. Found `probabilities = .0, 2."),
        (rows([1.0]), torch.tensor([0]), "N ≥ 1 and K ≥ 2"),
        (GOOD[0], TARGET, r"of shape \[N, K\]"),
        (GOOD.long(), TARGET, "`probabilities` should be floating point"),
        (GOOD, torch.tensor([2]), r"`targets` should be in 0..1. Found `targets = values in 2..2`"),
        (GOOD, torch.tensor([-1]), "`targets` should be in 0..1"),
        (GOOD, torch.tensor([1.0]), "`targets` should be integer class indices. Found `targets = torch.float32`"),
        (GOOD, torch.tensor([1, 1]), r"`targets` should be of shape \[1\], one per sample. Found `targets = \[2\]`"),
    ],
)
def test_bad_input(metric: object, p: torch.Tensor, y: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric(p, y)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bins", [0, -1, 2.5, True])
def test_bad_bins(bins: object) -> None:
    for name in BINNED:
        with pytest.raises(ValueError, match="`bins` should be an integer of at least 1"):
            getattr(metrics, name)(GOOD, TARGET, bins=bins)


def test_half_precision_probabilities_are_accepted() -> None:
    p, y = random_case(200, 10)
    assert metrics.ece(p.bfloat16(), y) == pytest.approx(metrics.ece(p, y), abs=0.02)
    assert np.isfinite(metrics.nll(p.half(), y))


def test_merged_adaptive_meters_keep_what_both_have_seen() -> None:
    p, y = random_case(300, 5)
    meters = [CalibrationMeter(5, adaptive=True) for _ in range(2)]
    meters[0].update(p[:100], y[:100])
    meters[1].update(p[100:], y[100:])
    assert meters[0].merge(meters[1]).compute()["adaptive_ece"] == pytest.approx(metrics.adaptive_ece(p, y), rel=1e-12)


@pytest.mark.usefixtures("unchecked")
def test_what_a_user_may_bring() -> None:
    p, y = random_case(300, 256)
    for name in BINNED + SCORES:
        metric = getattr(metrics, name)
        expected = metric(p, y)
        assert metric(p, y.to(torch.uint8)) == expected, "256 classes do not fit into 8 bits, their indices do"
        assert metric(p.clone().requires_grad_(), y) == expected
        assert metric(p.numpy(), y.tolist()) == expected
        with pytest.raises(ValueError, match=r"`targets` should be a torch.Tensor. Found .* a builtins.tuple`"):
            metric(p, tuple(y.tolist()))
    hair = torch.tensor([[1 + 1e-7, 0.0]])
    assert metrics.ece(hair, torch.tensor([0])) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match=r"`num_classes` should be an integer .* Found `num_classes = 2.5`"):
        CalibrationMeter(2.5)
