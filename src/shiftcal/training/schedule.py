"""Learning-rate schedules as a function of the progress through training."""

from __future__ import annotations

import math

from shiftcal.training.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, counted from 0 over the whole run.

    `one_cycle` rises linearly over the warm-up share of the run and falls linearly to zero, `cosine` falls along half a
    cosine; `multi_step` multiplies by `decay` at each milestone epoch, `exponential` after every epoch; `constant`
    stays.

    Example:
        >>> recipe = TrainConfig(epochs=10, warmup=0.2, learning_rate=0.1)
        >>> [round(learning_rate(recipe, step, 1), 3) for step in (0, 1, 2, 9)]
        [0.05, 0.1, 0.1, 0.013]
    """
    if config.schedule in ("one_cycle", "cosine"):
        total = config.epochs * steps_per_epoch
        warmup = config.warmup * total
        rising = (step + 1) / warmup if warmup else 1.0
        falling = min((total - step) / (total - warmup), 1.0)
        if config.schedule == "cosine":
            falling = (1 - math.cos(math.pi * falling)) / 2
        return config.learning_rate * min(rising, falling)
    if config.schedule == "multi_step":
        passed = sum(step >= milestone * steps_per_epoch for milestone in config.milestones)
        return float(config.learning_rate * config.decay**passed)
    if config.schedule == "exponential":
        return float(config.learning_rate * config.decay ** (step // steps_per_epoch))
    return config.learning_rate
