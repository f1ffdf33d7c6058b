"""Selective prediction, the signed gap and the noise floor, against loops in float64 and closed forms."""

import math

import numpy as np
import pytest
import torch

from shiftcal.metrics import accuracy, accuracy_at_coverage, aurc, confidence_gap, ece, ece_noise_floor, excess_aurc


def predictions(n: int = 200, classes: int = 4, seed: int = 0, digits: int | None = None) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    p = (2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)).softmax(-1)
    if digits is not None:  # many ties
        p = p.mul(10**digits).round().clamp_min(1)
        p = p / p.sum(1, keepdim=True)
    return p, torch.multinomial(p, 1, generator=generator).squeeze(1)


def by_the_definition(p: torch.Tensor, y: torch.Tensor, order: np.ndarray) -> float:
    errors = (p.argmax(1) != y).numpy()[order]
    return float(np.mean([errors[:k].mean() for k in range(1, len(errors) + 1)]))


def test_aurc_is_the_mean_of_selective_risks() -> None:
    p, y = predictions()
    order = np.argsort(-p.amax(1).numpy(), kind="stable")
    assert aurc(p, y) == pytest.approx(by_the_definition(p, y, order), abs=1e-12)


def test_ties_count_as_in_random_order() -> None:
    p, y = predictions(60, digits=1)
    rng, confidence = np.random.default_rng(0), p.amax(1).numpy()
    shuffled = [by_the_definition(p, y, np.lexsort((rng.random(60), -confidence))) for _ in range(4000)]
    assert aurc(p, y) == pytest.approx(np.mean(shuffled), abs=4 * np.std(shuffled) / math.sqrt(4000))
    flat = torch.full((50, 2), 0.5, dtype=torch.float64)
    targets = torch.arange(50) % 2
    assert aurc(flat, targets) == pytest.approx(0.5), "a confidence that says nothing has the error rate"
    assert accuracy_at_coverage(flat, targets, coverage=0.3) == pytest.approx(0.5)


def test_excess_is_zero_for_a_perfect_order_and_largest_for_the_reverse() -> None:
    confidence = torch.linspace(0.55, 0.99, 40, dtype=torch.float64)
    p = torch.stack([confidence, 1 - confidence], 1)
    right = torch.zeros(40, dtype=torch.int64)
    doubtful, sure = right.clone(), right.clone()
    doubtful[:10] = 1  # wrong where it is least sure
    sure[-10:] = 1
    assert excess_aurc(p, doubtful) == pytest.approx(0.0, abs=1e-12)
    best = sum((i - 30) / i for i in range(31, 41)) / 40
    assert aurc(p, doubtful) == pytest.approx(best, abs=1e-12)
    assert excess_aurc(p, sure) == pytest.approx(aurc(p, sure) - best, abs=1e-12)
    assert excess_aurc(p, sure) > 0.3
    assert aurc(p, right) == excess_aurc(p, right) == 0.0


def test_accuracy_at_coverage() -> None:
    p, y = predictions(50)
    order = (-p.amax(1)).argsort()
    hits = (p.argmax(1) == y)[order].double()
    for coverage, count in ((0.8, 40), (0.9, 45), (0.01, 1), (1.0, 50), (0.81, 41)):
        assert accuracy_at_coverage(p, y, coverage=coverage) == pytest.approx(hits[:count].mean().item())
    assert accuracy_at_coverage(p, y, coverage=1.0) == pytest.approx(accuracy(p, y))


def test_the_gap_has_a_sign() -> None:
    p = torch.tensor([[0.9, 0.1]]).repeat(10, 1)
    assert confidence_gap(p, torch.zeros(10, dtype=torch.int64)) == pytest.approx(-0.1, abs=1e-6)
    assert confidence_gap(p, torch.ones(10, dtype=torch.int64)) == pytest.approx(0.9, abs=1e-6)


@pytest.mark.parametrize(("n", "share"), [(50, 0.7), (400, 0.9)])
def test_the_floor_of_one_bin_is_the_mean_deviation_of_a_binomial(n: int, share: float) -> None:
    p = torch.tensor([[share, 1 - share]], dtype=torch.float64).expand(n, 2)
    k = np.arange(n + 1)
    weights = [math.exp(math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)) for i in k]
    weights = np.array(weights) * share**k * (1 - share) ** (n - k)
    expected = float((weights * np.abs(k / n - share)).sum())
    assert ece_noise_floor(p, draws=4000) == pytest.approx(expected, rel=0.05)


def test_a_calibrated_model_is_at_its_floor_and_another_above() -> None:
    p, y = predictions(3000)
    floor = ece_noise_floor(p)
    assert 0.5 * floor < ece(p, y) < 2 * floor
    sharper = p**2 / (p**2).sum(1, keepdim=True)
    assert ece(sharper, y) > 3 * ece_noise_floor(sharper)
    assert ece_noise_floor(p, seed=1) == pytest.approx(floor, rel=0.1)
    for name, value in (("bins", 0), ("draws", 0)):
        with pytest.raises(ValueError, match=f"`{name}` should be an integer of at least 1"):
            ece_noise_floor(p, **{name: value})
