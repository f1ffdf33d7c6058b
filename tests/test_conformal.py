import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shiftcal.conformal import ConformalSets, coverage_and_size


def drawn(n: int, classes: int, seed: int, sharpness: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p = (sharpness * torch.randn(n, classes, generator=generator, dtype=torch.float64)).softmax(-1)
    return p, torch.multinomial(p, 1, generator=generator).squeeze(1)


def reference_scores(p: np.ndarray, u: np.ndarray, penalty: float, k_reg: int) -> np.ndarray:
    """The score of every class, class by class, as the papers write it."""
    scores = np.empty_like(p)
    for i, row in enumerate(p):
        for k, own in enumerate(row):
            above = [j for j, other in enumerate(row) if other > own or (other == own and j < k)]
            scores[i, k] = row[above].sum() + u[i] * own + penalty * max(len(above) + 1 - k_reg, 0)
    return scores


def split_mix(row: np.ndarray, seed: int) -> float:
    """A number in [0, 1) made of the bits of the eight largest probabilities, in whole numbers modulo 2^64."""
    modulus, mixed = 2**64, seed
    for value in np.sort(row)[::-1][:8]:
        mixed ^= int(np.float64(value).view(np.uint64))
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % modulus
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % modulus
        mixed ^= mixed >> 31
    return (mixed >> 11) / 2**53


def test_a_set_does_not_depend_on_its_batch() -> None:
    p, y = drawn(3000, 10, 0)
    sets = ConformalSets.fit(p[:1500], y[:1500], level=0.9)
    whole = sets(p[1500:])
    assert torch.equal(torch.cat([sets(row[None]) for row in p[1500:]]), whole)
    assert torch.equal(sets(p[1500:].flip(0)), whole.flip(0))
    assert not torch.equal(ConformalSets.fit(p[:1500], y[:1500], level=0.9, seed=1)(p[1500:]), whole)


def test_what_is_random_is_uniform() -> None:
    p, _ = drawn(20000, 10, 0)
    u = np.array([split_mix(row, 0) for row in p.numpy()])
    assert stats.kstest(u, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(u, p.numpy().max(1))[0, 1]) < 0.02


@pytest.mark.parametrize(("kind", "penalty"), [("aps", 0.0), ("raps", 0.05)])
def test_sets_are_those_of_the_papers(kind: str, penalty: float) -> None:
    p, y = drawn(200, 10, 0)
    sets = ConformalSets.fit(p, y, level=0.8, kind=kind, penalty=penalty, k_reg=2, seed=3)
    u = np.array([split_mix(row, 3) for row in p.numpy()])
    scores = reference_scores(p.numpy(), u, penalty if kind == "raps" else 0.0, 2)
    own = np.sort(scores[np.arange(200), y.numpy()])
    assert sets.threshold == pytest.approx(own[math.ceil(201 * 0.8) - 1])
    expected = scores <= sets.threshold
    expected[np.arange(200), p.numpy().argmax(1)] = True
    assert np.array_equal(sets(p).numpy(), expected)


@pytest.mark.parametrize("kind", ["aps", "raps"])
@pytest.mark.parametrize("level", [0.7, 0.9])
def test_coverage_is_what_was_asked_for_on_data_alike(kind: str, level: float) -> None:
    coverages = []
    for seed in range(20):
        p, y = drawn(2000, 10, seed, 1.0)
        sets = ConformalSets.fit(p[:1000], y[:1000], level=level, kind=kind, seed=seed)
        coverages.append(coverage_and_size(sets(p[1000:]), y[1000:])[0])
    assert abs(np.mean(coverages) - level) < 0.012


def test_the_penalty_keeps_sets_small() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 50, generator=generator, dtype=torch.float64)
    top, second = logits.topk(2, dim=1).indices.T
    logits[torch.arange(4000), top] += 2
    p, y = logits.softmax(-1), torch.where(torch.rand(4000, generator=generator) < 0.8, top, second)
    sizes = {}
    for kind in ("aps", "raps"):
        sets = ConformalSets.fit(p[:2000], y[:2000], kind=kind, penalty=0.05, k_reg=5)
        sizes[kind] = coverage_and_size(sets(p[2000:]), y[2000:])[1]
    assert sizes["raps"] < sizes["aps"]


def test_too_few_samples_give_all_classes() -> None:
    p, y = drawn(5, 4, 0)
    assert ConformalSets.fit(p, y, level=0.9)(p).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 50), st.integers(2, 8), st.integers(0, 1000))
def test_every_set_has_the_first_class(n: int, classes: int, seed: int) -> None:
    p, y = drawn(n, classes, seed)
    sets = ConformalSets.fit(p, y, level=0.5)(p)
    assert sets.gather(1, p.argmax(1, keepdim=True)).all()


@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_named() -> None:
    p, y = drawn(10, 3, 0)
    with pytest.raises(ValueError, match="`level` should be in"):
        ConformalSets.fit(p, y, level=1.0)
    with pytest.raises(ValueError, match="`kind` should be 'aps' or 'raps'"):
        ConformalSets.fit(p, y, kind="lac")


def test_arrays_are_taken() -> None:
    p, y = drawn(50, 3, 0)
    assert ConformalSets.fit(p.numpy(), y.numpy()) == ConformalSets.fit(p, y)


@pytest.mark.usefixtures("unchecked")
def test_wrong_sets_and_penalties_are_named() -> None:
    p, y = torch.tensor([[0.9, 0.1]] * 4), torch.zeros(4, dtype=torch.int64)
    for options, message in (
        ({"penalty": -1.0}, "`penalty` should be at least 0, and finite"),
        ({"penalty": math.nan}, "`penalty` should be at least 0, and finite"),
        ({"k_reg": -1}, "`k_reg` should be an integer of at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            ConformalSets.fit(p, y, kind="raps", **options)
    sets = ConformalSets.fit(p, y)(p)
    for tried, targets, message in (
        (p, y, "`sets` should be booleans of shape"),
        (sets[0], y, "`sets` should be booleans of shape"),
        (sets, y[:2], r"`targets` should be of shape \[4\]"),
        (sets, y + 5, r"`targets` should be in 0..1"),
    ):
        with pytest.raises(ValueError, match=message):
            coverage_and_size(tried, targets)
