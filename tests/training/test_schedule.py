import math

import pytest
from torch import nn

from shiftcal.training.optimizer import make_optimizer
from shiftcal.training.schedule import learning_rate, set_learning_rate
from shiftcal.training.settings import TrainSettings


def test_one_cycle_rises_and_falls() -> None:
    recipe = TrainSettings(epochs=10, warmup=0.2, learning_rate=0.5)
    rates = [learning_rate(recipe, step, 100) for step in range(1000)]
    assert max(rates) == pytest.approx(0.5)
    assert rates[:200] == sorted(rates[:200])
    assert rates[200:] == sorted(rates[200:], reverse=True)
    assert rates[0] == pytest.approx(0.5 / 200)
    assert rates[-1] == pytest.approx(0.5 / 800)


def test_one_cycle_without_warm_up_starts_at_the_top() -> None:
    assert learning_rate(TrainSettings(epochs=2, warmup=0.0, learning_rate=0.5), 0, 10) == 0.5


def test_multi_step_is_the_papers() -> None:
    recipe = TrainSettings(epochs=350, schedule="multi_step", milestones=(150, 250), learning_rate=0.1)
    rates = [learning_rate(recipe, epoch * 391 + 390, 391) for epoch in (0, 149, 150, 249, 250, 349)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    assert learning_rate(recipe, 150 * 391 - 1, 391) == 0.1


def test_constant_stays() -> None:
    recipe = TrainSettings(schedule="constant", learning_rate=0.3)
    assert learning_rate(recipe, 0, 10) == learning_rate(recipe, 99, 10) == 0.3


def test_cosine_falls_along_half_a_cosine_after_its_warmup() -> None:
    recipe = TrainSettings(schedule="cosine", epochs=10, warmup=0.2, learning_rate=0.4)
    rates = [learning_rate(recipe, step, 10) for step in range(100)]
    assert rates[0] == pytest.approx(0.02)
    assert rates[19] == rates[20] == pytest.approx(0.4)
    for step in (20, 40, 60, 99):
        assert rates[step] == pytest.approx(0.2 * (1 + math.cos(math.pi * (step - 20) / 80)))
    without = TrainSettings(schedule="cosine", epochs=10, warmup=0.0, learning_rate=0.4)
    assert learning_rate(without, 0, 10) == pytest.approx(0.4)
    assert learning_rate(without, 50, 10) == pytest.approx(0.2)


def test_milestones_count_from_their_first_step() -> None:
    recipe = TrainSettings(schedule="multi_step", milestones=(150, 250), learning_rate=0.1, decay=0.1)
    rates = [learning_rate(recipe, step, 391) for step in (150 * 391 - 1, 150 * 391, 250 * 391 - 1, 250 * 391)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001])


def test_exponential_multiplies_after_every_epoch() -> None:
    recipe = TrainSettings(schedule="exponential", decay=0.96, learning_rate=1e-4)
    assert [learning_rate(recipe, step, 7) for step in (0, 6, 7, 13, 14)] == pytest.approx(
        [1e-4, 1e-4, 0.96e-4, 0.96e-4, 0.96**2 * 1e-4]
    )


def test_the_rate_is_that_of_every_group() -> None:
    optimizer = make_optimizer(TrainSettings(optimizer="adamw"), nn.Linear(2, 2))  # weights and biases apart
    set_learning_rate(optimizer, TrainSettings(schedule="constant", learning_rate=0.3), 0, 1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.3, 0.3]
