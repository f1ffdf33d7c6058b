"""Gradient noise: batches as a run's training draws them, at the weights that it kept or after chosen epochs."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn

from shiftcal import _distributed
from shiftcal._errors import wrong
from shiftcal._progress import Progress
from shiftcal.analysis.noise import Noise, gradient_noise
from shiftcal.data.dataset import Dataset
from shiftcal.data.epoch import Batch, seeded
from shiftcal.experiments.config import Config
from shiftcal.experiments.finished_runs import FinishedRun, labels_of
from shiftcal.experiments.setup import Setup, set_up
from shiftcal.losses import soft_ece
from shiftcal.models import classifier_of
from shiftcal.records.arrays import Arrays
from shiftcal.training.step import forward
from shiftcal.training.task import Task

_PAIRS = 16


def noise_arrays(runs: Sequence[FinishedRun], *, pairs: int, progress: bool) -> Arrays:
    """Measure the noise of each run's constraint, as arrays [runs, scopes]."""
    scopes = ["all", "classifier"]
    rows: list[list[dict[str, float]]] = []
    with Progress("noise", pairs * len(runs), enabled=progress) as bar:
        for place, run in enumerate(runs):
            found = measure_noise(run.config, run.dataset, run.model, pairs=pairs, advance=bar.advance)
            rows.append([_numbers(found[scope]) for scope in scopes])
            agreed = found["all"].cosine
            bar.line(f"{labels_of(runs)[place]}: cosine of two batches {agreed.mean:.3f} ± {agreed.error:.3f}")
    arrays = {name: np.array([[one[name] for one in row] for row in rows]) for name in rows[0][0]}
    return Arrays("noise", arrays, {"runs": labels_of(runs), "scopes": scopes, "pairs": pairs})


def with_noise(setup: Setup, config: Config, dataset: Dataset) -> Setup:
    """Return a set-up that measures the noise after the epochs of `evaluation.noise`; training does not change."""
    if not config.evaluation.noise:
        return setup
    if _distributed.is_distributed():
        raise wrong("evaluation.noise", "left out where several ranks train", list(config.evaluation.noise))

    def noise(model: nn.Module) -> dict[str, dict[str, float]]:
        found = measure_noise(config, dataset, model, pairs=_PAIRS)
        return {scope: _numbers(measured) for scope, measured in found.items()}

    task = dataclasses.replace(setup.task, noise=noise, noise_after=frozenset(config.evaluation.noise))
    return dataclasses.replace(setup, task=task)


def _numbers(noise: Noise) -> dict[str, float]:
    """Write means and standard errors by name."""
    estimates = {field.name: getattr(noise, field.name) for field in dataclasses.fields(noise)}
    means = {name: estimate.mean for name, estimate in estimates.items()}
    return means | {f"{name}_error": estimate.error for name, estimate in estimates.items()}


def measure_noise(
    config: Config,
    dataset: Dataset,
    model: nn.Module,
    *,
    pairs: int,
    advance: Callable[[], object] = lambda: None,
) -> dict[str, Noise]:
    """Measure the noise of a run's constraint, in training mode; of a method without one, that of Soft-ECE.

    Batches and augmentations are those of epochs after the last one, which no step saw.
    """
    setup = set_up(config, dataset, copy.deepcopy(model))  # batch-norm's running statistics move
    state, task = setup.state, setup.task
    constraint = state.full.constraint or soft_ece
    mixes, originals = _mixes(task), task.epoch(task.settings.epochs).original_batches(task.settings.step_size)
    names = ("augment", "method augment", "constraint augment")
    generators = {name: seeded(task.seed, task.settings.epochs, name, state.device) for name in names}

    def draw() -> tuple[Tensor, Tensor, Tensor]:
        mix = task.prepare(next(mixes), generators["augment"], generators["method augment"])
        main = state.full.main(forward(state.model, mix), mix)
        first, second = (task.prepare(next(originals), generators["constraint augment"], None) for _ in range(2))
        return main, *(constraint(forward(state.model, one), one.targets) for one in (first, second))  # type: ignore[return-value]

    state.model.train()
    classifier = classifier_of(state.model)[1].parameters()
    with torch.random.fork_rng([state.device] if state.device.type == "cuda" else []):
        torch.manual_seed(config.seed)  # dropout and the like
        return gradient_noise(draw, state.model.parameters(), classifier, pairs=pairs, advance=advance)


def _mixes(task: Task) -> Iterator[Batch]:
    """Draw batches of D_mix, whole ones, epoch after epoch."""
    size = min(task.settings.step_size, len(task.train))
    for number in count(task.settings.epochs):
        yield from (batch for batch in task.epoch(number).batches(size) if len(batch.targets) == size)
