import pytest
import torch
from torch import Tensor

from shiftcal.metrics import ece, ece_interval
from shiftcal.metrics.ece_interval import Gaps, gaps_of, interval_of_mean_ece


def case(n: int, generator: torch.Generator, sharpness: float) -> tuple[Tensor, Tensor]:
    """Predictions that are too sure by a factor on their logits; 1 is calibrated."""
    honest = 1.2 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return (sharpness * honest).softmax(-1), torch.multinomial(honest.softmax(-1), 1, generator=generator).squeeze(1)


def drawn(n: int = 1000, sharpness: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    return case(n, torch.Generator().manual_seed(seed), sharpness)


@pytest.mark.slow
@pytest.mark.parametrize("sharpness", [1.0, 1.1, 1.3, 2.0])
def test_it_contains_the_truth_about_as_often_as_it_says(sharpness: float) -> None:
    generator = torch.Generator().manual_seed(0)
    truth = ece(*case(400_000, generator, sharpness)) if sharpness != 1 else 0.0
    found = [ece_interval(*case(1000, generator, sharpness), resamples=200, seed=seed) for seed in range(200)]
    assert sum(low <= truth <= high for _, low, high in found) >= 170
    wider = [ece_interval(*case(1000, generator, sharpness), level=0.5, resamples=200, seed=k) for k in range(200)]
    assert 90 <= sum(low <= truth <= high for _, low, high in wider) <= 185


@pytest.mark.parametrize("sharpness", [0.6, 1.0, 1.1, 2.0])
def test_it_contains_the_error_that_was_measured(sharpness: float) -> None:
    for n in (20, 200, 2000):
        p, y = drawn(n, sharpness)
        value, low, high = ece_interval(p, y)
        assert value == pytest.approx(ece(p, y))
        assert 0 <= low <= value <= high <= 1
        assert low < high


def test_a_large_error_has_the_interval_of_a_mean() -> None:
    """Where every bin is far too sure, the ECE is the mean of confidence − hit, an ordinary mean."""
    p, y = drawn(4000, 5.0)
    excess = p.amax(1) - (p.argmax(1) == y).double()
    margin = 1.96 * float(excess.std()) / 4000**0.5
    value, low, high = ece_interval(p, y)
    assert value == pytest.approx(float(excess.mean()), abs=1e-3)
    assert low == pytest.approx(value - margin, abs=0.15 * margin)
    assert high == pytest.approx(value + margin, abs=0.15 * margin)


def test_one_bin_is_solved_by_hand() -> None:
    """One gap g with normal noise: |δ + ν| is at least g in one of forty sets where δ is about g − 1.96 s."""
    generator = torch.Generator().manual_seed(0)
    noise = 0.01 * torch.randn(200_000, 1, generator=generator, dtype=torch.float64)
    value, low, high = interval_of_mean_ece([Gaps(torch.tensor([0.05], dtype=torch.float64), noise)])
    assert (value, low, high) == pytest.approx((0.05, 0.05 - 0.0196, 0.05 + 0.0196), abs=2e-4)
    _, low, high = interval_of_mean_ece([Gaps(torch.tensor([-0.02], dtype=torch.float64), noise)])
    assert low == 0, "P(|ν| > 2 s) is 4.6 %"
    assert high == pytest.approx(0.02 + 0.0196, abs=2e-4)
    _, low, high = interval_of_mean_ece([Gaps(torch.tensor([0.0], dtype=torch.float64), noise)])
    assert low == 0
    assert high == pytest.approx(0.00674 + 0.0196, abs=2e-4), "no better than the median of chance, 0.674 s"
    _, low, high = interval_of_mean_ece([Gaps(torch.tensor([0.05], dtype=torch.float64), noise)], level=0.8)
    assert (low, high) == pytest.approx((0.05 - 0.0128, 0.05 + 0.0128), abs=2e-4)


def test_chance_alone_reaches_down_to_zero_and_an_error_does_not() -> None:
    assert ece_interval(*drawn(1000, 1.0)).low == 0
    assert ece_interval(*drawn(1000, 2.0)).low > 0.1


def test_the_gaps_of_resampled_sets_give_their_eces() -> None:
    """Where there are more mistakes than a calibrated model makes; with fewer, noise is that of such a model."""
    generator = torch.Generator().manual_seed(0)
    confidence = 0.9 + 0.09 * torch.rand(300, generator=generator, dtype=torch.float64)
    p, y = torch.stack([confidence, 1 - confidence], 1), torch.randint(0, 2, (300,), generator=generator)
    gaps = gaps_of(p, y, resamples=60, seed=7)
    assert float(gaps.observed.abs().sum()) == pytest.approx(ece(p, y))
    found = (gaps.observed + gaps.noise).abs().sum(1)
    for start in (0, 50):  # drawn fifty at a time
        index = torch.randint(300, (min(50, 60 - start), 300), generator=torch.Generator().manual_seed(7 + start))
        expected = torch.tensor([ece(p[row], y[row]) for row in index], dtype=torch.float64)
        torch.testing.assert_close(found[start : start + 50], expected)


def test_the_mean_of_several_sets() -> None:
    """Sets of the same images are no more evidence than one; independent ones are."""
    one, width = drawn(500, 2.0), lambda interval: interval.high - interval.low
    alone = ece_interval(*one)
    together = interval_of_mean_ece([gaps_of(*one)] * 16)
    assert together == pytest.approx(alone)
    sets = [gaps_of(*drawn(500, 2.0, seed), seed=seed) for seed in range(16)]
    independent = interval_of_mean_ece(sets)
    assert independent.value == pytest.approx(sum(float(s.observed.abs().sum()) for s in sets) / 16)
    assert width(independent) == pytest.approx(width(alone) / 4, rel=0.25)


@pytest.mark.parametrize(("sure", "n"), [(0.98, 30), (0.99, 20), (0.999, 300), (1.0, 50)])
def test_no_mistakes_are_no_proof(sure: float, n: int) -> None:
    """All right, of a model that says so all but surely: 3 of n may be wrong another time (the rule of three)."""
    p = torch.tensor([[sure, 1 - sure]], dtype=torch.float64).expand(n, 2)
    value, low, high = ece_interval(p, torch.zeros(n, dtype=torch.int64))
    assert value == pytest.approx(1 - sure)
    assert low == 0
    assert high > 1.5 / n
    assert ece_interval(p, torch.ones(n, dtype=torch.int64)).low > 0.6 * sure, "all wrong"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("more", [0, 10])
def test_rounding_is_no_error(dtype: torch.dtype, more: int) -> None:
    """Right as often as it says, up to the last digits of a sum; or but for a few, in another bin."""
    p = torch.tensor([[0.9, 0.1]] * 1000 + [[0.6, 0.4]] * more, dtype=dtype)
    y = torch.cat([(torch.arange(1000) >= 900).long(), torch.arange(more) % 2])
    value, low, high = ece_interval(p, y)
    assert value == pytest.approx(0.1 * more / 1010, abs=1e-7)
    assert low == 0
    assert high == pytest.approx(2.6 * 0.3 / 1000**0.5, rel=0.2)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_one_image_a_bin_says_nothing(n: int) -> None:
    sure = torch.linspace(0.55, 0.99, n, dtype=torch.float64)
    p = torch.stack([sure, 1 - sure], 1)
    for y in (torch.zeros(n, dtype=torch.int64), torch.arange(n) % 2):
        _, low, high = ece_interval(p, y)
        assert low == 0
        assert high > 0.8


def test_noise_that_is_not_symmetric_is_tried_both_ways() -> None:
    """One mistake of a sure model: that it says too much, or too little, are different suppositions."""
    noise = torch.tensor([[-0.001]] * 95 + [[0.02]] * 5, dtype=torch.float64)
    observed = torch.tensor([-0.01], dtype=torch.float64)
    alone = float(interval_of_mean_ece([Gaps(observed, noise)]).high)
    assert alone == pytest.approx(float(interval_of_mean_ece([Gaps(-observed, noise)]).high))
    assert alone == pytest.approx(0.03, abs=1e-3), "|−0.03 + 0.02| is 0.01"


@pytest.mark.slow
@pytest.mark.parametrize(("sure", "n"), [(0.97, 50), (0.995, 50), (0.995, 200), (0.995, 1000)])
def test_it_contains_zero_for_models_that_are_sure_and_calibrated(sure: float, n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for seed in range(100):
        wrong = torch.empty(n, dtype=torch.float64).exponential_(1 / (1 - sure), generator=generator).clamp(max=0.5)
        y = (torch.rand(n, generator=generator, dtype=torch.float64) < wrong).long()
        hits += ece_interval(torch.stack([1 - wrong, wrong], 1), y, resamples=200, seed=seed).low == 0
    assert hits >= 92


def test_the_seed_is_that_of_the_draws() -> None:
    p, y = drawn(300, 1.3)
    assert ece_interval(p, y, seed=3) == ece_interval(p, y, seed=3) != ece_interval(p, y, seed=4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 1.0}, r"`level` should be in \(0, 1\)"),
        ({"resamples": 1}, "`resamples` should be an integer of at least 2"),
        ({"bins": 0}, "`bins` should be"),
    ],
)
def test_bad_input(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ece_interval(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), **options)
