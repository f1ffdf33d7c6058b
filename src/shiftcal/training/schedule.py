"""Learning-rate schedules as a function of the progress through training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shiftcal.training.settings import TrainSettings


def set_learning_rate(optimizer: torch.optim.Optimizer, config: TrainSettings, step: int, steps_per_epoch: int) -> None:
    """Set the learning rate of a step; on a GPU it is a tensor there, which a captured step reads."""
    value = learning_rate(config, step, steps_per_epoch)
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def learning_rate(config: TrainSettings, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a step, counted from 0 over the whole run.

    `one_cycle` rises linearly over the warm-up share of the run and falls linearly to zero, `cosine` falls along half a
    cosine; `multi_step` multiplies by `decay` at each milestone epoch, `exponential` after every epoch; `constant`
    stays.

    Example:
        >>> recipe = TrainSettings(epochs=10, warmup=0.2, learning_rate=0.1)
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
