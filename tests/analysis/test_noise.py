"""Gradient noise where its distribution is known."""

import math

import pytest
import torch
from torch import Tensor

from shiftcal.analysis.noise import gradient_noise


def linear(parameters: list[Tensor], *directions: Tensor) -> tuple[Tensor, ...]:
    """Losses whose gradients are given vectors."""
    flat = torch.cat([p.flatten() for p in parameters])
    return tuple(flat @ direction for direction in directions)


def test_known_gradients_give_their_cosines_norms_and_conflicts() -> None:
    body, head = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    main, first = torch.tensor([1.0, 0.0, -1.0, 0.0]), torch.tensor([3.0, 0.0, 1.0, 0.0])
    second = torch.tensor([0.0, 3.0, 1.0, 0.0])
    found = gradient_noise(lambda: linear([body, head], main, first, second), [body, head], [head], pairs=3)
    whole, classifier = found["all"], found["classifier"]
    assert whole.cosine.mean == pytest.approx(1 / 10)
    assert whole.norm.mean == pytest.approx(math.sqrt(10))
    assert whole.main_cosine.mean == pytest.approx(2 / math.sqrt(20))
    assert whole.conflict_rate.mean == 0
    assert classifier.cosine.mean == pytest.approx(1)
    assert classifier.norm.mean == pytest.approx(1)
    assert classifier.main_cosine.mean == pytest.approx(-1)
    assert classifier.conflict_rate.mean == 1
    assert whole.cosine.error == 0


def test_pure_noise_has_cosines_around_zero_with_the_right_error() -> None:
    n, pairs = 400, 200
    parameters = [torch.zeros(n // 2, requires_grad=True) for _ in range(2)]
    generator = torch.Generator().manual_seed(0)

    def draw() -> tuple[Tensor, ...]:
        return linear(parameters, *torch.randn(3, n, generator=generator))

    found = gradient_noise(draw, parameters, parameters[1:], pairs=pairs)["all"]
    assert found.cosine.error == pytest.approx(1 / math.sqrt(n * pairs), rel=0.15)
    assert abs(found.cosine.mean) < 4 * found.cosine.error
    assert found.conflict_rate.mean == pytest.approx(0.5, abs=0.15)
    assert found.norm.mean == pytest.approx(math.sqrt(n), rel=0.01)


def test_a_shared_signal_shows_in_the_cosine() -> None:
    n = 1000
    weights = [torch.zeros(n, requires_grad=True)]
    generator = torch.Generator().manual_seed(0)
    signal = torch.randn(n, generator=generator)

    def draw() -> tuple[Tensor, ...]:  # as much signal as noise: the expected cosine is 1/2
        main, first, second = signal + torch.randn(3, n, generator=generator)
        return linear(weights, main, first, second)

    steps = []
    found = gradient_noise(draw, weights, weights, pairs=20, advance=lambda: steps.append(1))["all"]
    assert found.cosine.mean == pytest.approx(0.5, abs=0.03)
    assert len(steps) == 20


def test_a_vanishing_constraint_is_zero_not_nan() -> None:
    weights = [torch.ones(3, requires_grad=True)]
    found = gradient_noise(lambda: linear(weights, *torch.eye(3)[:1], *torch.zeros(2, 3)), weights, weights, pairs=1)
    assert found["all"].cosine.mean == found["all"].main_cosine.mean == found["all"].norm.mean == 0
    with pytest.raises(ValueError, match="pairs"):
        gradient_noise(lambda: linear(weights, *torch.eye(3)), weights, weights, pairs=0)
