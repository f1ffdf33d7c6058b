import numpy as np
import pytest
import relplot
import torch

from shiftcal.metrics import smooth_ece


def case(n: int, classes: int, sharpness: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = sharpness * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return z.softmax(-1), torch.multinomial((z / 2).softmax(-1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize(
    ("n", "classes", "sharpness"), [(200, 3, 1.0), (2000, 10, 2.0), (5000, 10, 1.0), (1000, 2, 0.2)]
)
def test_agrees_with_relplot_where_confidence_stays_off_one(n: int, classes: int, sharpness: float) -> None:
    p, y = case(n, classes, sharpness, seed=n)
    expected = relplot.smECE(p.max(1).values.numpy(), (p.argmax(1) == y).double().numpy())
    assert smooth_ece(p, y) == pytest.approx(float(expected), rel=5e-3)


def test_mass_at_the_boundary_is_kept() -> None:
    # Very sure and always too sure: residuals have one sign at every width, so that the error is their mean.
    # relplot loses or gains several per cent here, since its mesh counts the boundary point once.
    p, y = case(3000, 5, 6.0, seed=3)
    gap = float((p.max(1).values - (p.argmax(1) == y).double()).mean())
    assert smooth_ece(p, y) == pytest.approx(gap, rel=1e-3)


def test_calibrated_predictions_have_a_small_error_that_falls_with_their_number() -> None:
    errors = []
    for n in (200, 20000):
        p, _ = case(n, 4, 1.0, seed=0)
        y = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(1)).squeeze(1)
        errors.append(smooth_ece(p, y))
    assert errors[1] < 0.5 * errors[0]
    assert errors[1] < 0.02


def test_order_does_not_matter() -> None:
    p, y = case(500, 5, 1.0, seed=5)
    order = torch.from_numpy(np.random.default_rng(0).permutation(500))
    assert smooth_ece(p[order], y[order]) == pytest.approx(smooth_ece(p, y), rel=1e-9)


def test_small_errors_agree_with_relplot_too() -> None:
    # Of a calibrated model: the width that equals the error is small, and bisection must get near it.
    generator = torch.Generator().manual_seed(7)
    p = torch.randn(40000, 4, generator=generator, dtype=torch.float64).softmax(-1)
    y = torch.multinomial(p, 1, generator=generator).squeeze(1)
    expected = relplot.smECE(p.max(1).values.numpy(), (p.argmax(1) == y).double().numpy())
    assert smooth_ece(p, y) < 0.01
    assert smooth_ece(p, y) == pytest.approx(float(expected), rel=5e-3)
