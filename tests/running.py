"""Runs for tests that need more than `shiftcal.train`: a model of their own, or a state to look into."""

from pathlib import Path

import torch
from torch import nn

from shiftcal.data import Dataset
from shiftcal.experiments.config import Config
from shiftcal.experiments.saving import saving
from shiftcal.experiments.setup import Setup, set_up
from shiftcal.training.loop import fit


def run_with(config: Config, dataset: Dataset, model: nn.Module | None = None) -> Setup:
    """Train a model to the end, in memory."""
    return finish(set_up(config, dataset, model), config)


def finish(setup: Setup, config: Config, checkpoints: Path | None = None, *, resume: bool = False) -> Setup:
    """Train what was set up to the end."""
    with saving(setup.state, config, checkpoints, resume=resume, progress=False) as hooks:
        fit(setup.state, setup.task, config.engine, hooks=hooks, progress=False)
    return setup


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Tell whether two models have the same weights, bit for bit."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
