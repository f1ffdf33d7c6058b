import numpy as np
import pytest
import torch

from shiftcal import metrics
from shiftcal.calibrators import TemperatureScaling
from shiftcal.calibrators.temperature import GRID, _lowest_of_convex


def sharpened(factor: float, n: int = 4000) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are calibrated when divided by `factor`: classes are drawn from their softmax."""
    generator = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(n, 5, generator=generator)
    targets = torch.multinomial(honest.softmax(-1), 1, generator=generator).squeeze(1)
    return factor * honest, targets


def test_grid_is_the_papers() -> None:
    assert TemperatureScaling().criterion == "nll"
    np.testing.assert_allclose(GRID, np.arange(0.10, 5.001, 0.01), atol=1e-12)


@pytest.mark.parametrize("criterion", ["nll", "ece"])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.5])
def test_recovers_the_temperature(criterion: str, factor: float) -> None:
    logits, targets = sharpened(factor)
    scaling = TemperatureScaling(criterion).fit(logits, targets)
    assert scaling.temperature == pytest.approx(factor, rel=0.12)
    assert torch.equal(scaling(logits).argmax(1), logits.argmax(1))
    torch.testing.assert_close(scaling(logits), logits / scaling.temperature)


@pytest.mark.parametrize("criterion", ["nll", "ece"])
def test_is_the_best_point_of_the_grid(criterion: str) -> None:
    logits, targets = sharpened(1.7, n=300)
    logits, measure = logits.double(), getattr(metrics, criterion)
    values = [measure((logits / t).softmax(-1), targets) for t in GRID.tolist()]
    scaling = TemperatureScaling(criterion).fit(logits, targets)
    assert measure(scaling(logits).softmax(-1), targets) == pytest.approx(min(values), rel=1e-9)


@pytest.mark.parametrize("factor", [0.05, 0.3, 0.99, 1.0, 2.345, 4.9, 40.0])
@pytest.mark.parametrize("n", [3, 40, 700])
def test_nll_is_searched_as_if_the_whole_grid_were(factor: float, n: int) -> None:
    logits, targets = (part[:n] for part in sharpened(factor))
    values = [metrics.nll((logits.double() / t).softmax(-1), targets) for t in GRID.tolist()]
    assert TemperatureScaling().fit(logits, targets).temperature == pytest.approx(float(GRID[int(np.argmin(values))]))


def test_of_equal_errors_the_first_temperature_is_taken() -> None:
    """Two samples far apart: over a range of temperatures both confidences stay 1, and the ECE the same."""
    logits, targets = torch.tensor([[400.0, 0.0], [0.0, 400.0]], dtype=torch.float64), torch.tensor([0, 1])
    for criterion in ("nll", "ece"):
        assert TemperatureScaling(criterion=criterion).fit(logits, targets).temperature == pytest.approx(0.1)


def test_a_perfect_classifier_gets_the_lowest_temperature() -> None:
    logits = 1e4 * torch.eye(5).repeat(8, 1)
    assert TemperatureScaling().fit(logits, torch.arange(5).repeat(8)).temperature == pytest.approx(0.1)


def test_lowers_the_error_of_an_overconfident_model() -> None:
    logits, targets = sharpened(3.0)
    scaling = TemperatureScaling("ece").fit(logits[:2000], targets[:2000])
    before = metrics.ece(logits[2000:].softmax(-1), targets[2000:])
    after = metrics.ece(scaling(logits[2000:]).softmax(-1), targets[2000:])
    assert after < 0.3 * before


def test_huge_logits_are_fitted() -> None:
    logits, targets = sharpened(1.0, n=100)
    assert TemperatureScaling().fit(1e4 * logits, targets).temperature == 5.0


@pytest.mark.usefixtures("unchecked")
def test_refuses() -> None:
    logits, targets = sharpened(1.0, n=10)
    with pytest.raises(ValueError, match="should be fitted before use"):
        TemperatureScaling()(logits)
    with pytest.raises(ValueError, match="`logits` should be finite"):
        TemperatureScaling().fit(logits * float("nan"), targets)
    with pytest.raises(ValueError, match=r"`targets` should be in 0..4"):
        TemperatureScaling().fit(logits, targets + 5)
    with pytest.raises(ValueError, match="`targets` should be integer"):
        TemperatureScaling().fit(logits, targets.float())
    with pytest.raises(ValueError, match="`logits` should be of shape"):
        TemperatureScaling().fit(logits[0], targets)
    with pytest.raises(ValueError, match=r"`criterion` should be 'nll' or 'ece'. Found `criterion = 'accuracy'`"):
        TemperatureScaling("accuracy")
    with pytest.raises(ValueError, match="`search` should be 'grid' or 'lbfgs'"):
        TemperatureScaling(search="newton")


@pytest.mark.parametrize("count", [1, 16, 17, 40, 491])
def test_the_lowest_of_a_convex_function_is_found_wherever_it_lies(count: int) -> None:
    for lowest in range(count):
        for steep in (1, 3):  # on either side
            values = [(lowest - i) * steep if i < lowest else i - lowest for i in range(count)]
            assert _lowest_of_convex(values.__getitem__, count) == lowest
    flat = [max(abs(i - count // 2), 3) for i in range(count)]
    assert _lowest_of_convex(flat.__getitem__, count) == flat.index(min(flat)), "the first of equal ones"
