"""From a config to what it trains and evaluates: data set, model, task, and the grid over shifts."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shiftcal import _distributed, data, models
from shiftcal._errors import wrong
from shiftcal._io import first_difference
from shiftcal.auditing.grid import ShiftGrid, evaluate
from shiftcal.data.dataset import Dataset
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import FileSplit, ImageSplit
from shiftcal.evaluation import Parts, meter_of, predict
from shiftcal.experiments.config import Config, DataSettings
from shiftcal.experiments.environment import resolve_device
from shiftcal.records import WEIGHTS, Evaluation
from shiftcal.training.engine.distributed import synchronised
from shiftcal.training.finetune import Stage
from shiftcal.training.state import TrainState, start_state
from shiftcal.training.task import Task, low_pass_policy, perturbation_of, preparation


@dataclass(frozen=True)
class Setup:
    """A run that can start: its state, its task, and how stored images become its model's input."""

    state: TrainState
    task: Task
    preprocess: Preprocessing


def set_up(config: Config, dataset: Dataset, model: nn.Module | None = None) -> Setup:
    """Build the model and all that trains it; with `model`, that one is trained."""
    own, row, device = config.train, config.row, resolve_device(config.device)
    if _distributed.is_distributed() and own.accumulate > 1 and isinstance(dataset.train, FileSplit):
        expected = "1 where several ranks decode from disk (data.loader=memory reads into memory)"
        raise wrong("train.accumulate", expected, own.accumulate)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = model or models.build(own.model, len(dataset.classes), own.weights)
    preprocess = preprocessing_of(config, dataset, model)
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if own.sync_batch_norm and _distributed.is_distributed():
        if device.type != "cuda":
            raise wrong("train.sync_batch_norm", "false for several ranks without GPUs", True)
        model = synchronised(model)
    prepare = preparation(row, own, preprocess)
    task = Task(
        name=config.method,
        method=row,
        settings=own,
        policy=low_pass_policy(row, config.filter, prepare),
        seed=config.seed,
        train=dataset.train.to(device),
        prepare=prepare,
        perturbation=perturbation_of(row, config.perturb),
        perturbed_until=config.perturb.until or 1.0,
        validate=validation(config, dataset.validation.to(device), preprocess),
        validate_every=config.evaluation.validate_every,
        test=testing(config, dataset, preprocess) if config.evaluation.every else None,
        test_every=config.evaluation.every or 1,
    )
    wanted = frozenset({row.weights, *config.evaluation.also})
    state = start_state(model, row, own, config.gamma, config.constraint, wanted=wanted, class_prior=dataset.prior)
    return Setup(state, task, preprocess)


def preprocessing_of(config: Config, dataset: Dataset, model: nn.Module) -> Preprocessing:
    """Say how stored images become a model's input: the recipe's word first, then the model's, then the data set's."""
    own = config.train
    asked = {"mean": own.mean, "std": own.std, "input_size": own.input_size}
    given = models.expected_input(model) | {name: value for name, value in asked.items() if value}
    return dataclasses.replace(dataset.preprocess, **given)


def validation(config: Config, split: ImageSplit, preprocess: Preprocessing) -> Callable[[nn.Module], dict[str, float]]:
    """Return what measures a model on the validation images after each epoch."""

    def validate(model: nn.Module) -> dict[str, float]:
        return _measured(config, model, split, preprocess)

    return validate


def testing(
    config: Config, dataset: Dataset, preprocess: Preprocessing
) -> Callable[[nn.Module], dict[str, dict[str, float]]]:
    """Return what measures a model on the test images after an epoch: clean, and the mean over shifts.

    One pass for each shift, at the middle one of its severities, instead of one for each severity.
    """

    def test(model: nn.Module) -> dict[str, dict[str, float]]:
        clean = _measured(config, model, dataset.test, preprocess)
        shifted = [_measured(config, model, split, preprocess) for split in shift_grid(config).middle(dataset)]
        means = {name: statistics.fmean(one[name] for one in shifted) for name in clean if shifted}
        return {"clean": clean, "shifted": means} if shifted else {"clean": clean}

    return test


def _measured(config: Config, model: nn.Module, split: Parts, preprocess: Preprocessing) -> dict[str, float]:
    predictions = predict(model, split, preprocess, batch_size=config.evaluation.batch_size)
    found = meter_of(predictions, config.evaluation.bins).compute()
    # With the accuracy it tells what the ECE does not: whether the model is too sure or not sure enough.
    confidence = float(predictions.logits.double().softmax(-1).amax(-1).mean())
    return {name: found[name] for name in ("accuracy", "nll", "ece")} | {"confidence": confidence}


def load_dataset(config: Config) -> Dataset:
    """Load the data set that a config names; a key that this one does not take may only have its default."""
    own = config.data
    taken, options = data.options_of(own.name), {}
    for name, field in type(own).model_fields.items():
        value = getattr(own, name)
        if name in ("name", "workers"):
            continue
        if name in taken and value is not None:
            options[name] = value
        elif name not in taken and value != field.default:
            other = " (recipe `domains` does)" if name == "holdout" else ""
            raise wrong(f"data.{name}", f"left out for {own.name}, which does not take it{other}", value)
    dataset = data.load(own.name, **options)
    return dataset if own.workers is None else dataset.with_workers(own.workers)


def seen(dataset: Dataset) -> dict[str, Any]:
    """Tell a data set from others under the same name: by its classes, and how many images of each it has, in order.

    How they are loaded belongs to it: images in memory are without those that cannot be read, streamed ones are not.
    """
    parts = {name: getattr(dataset, name) for name in ("train", "validation", "test")}
    targets = hashlib.sha256(b"".join(part.targets.cpu().numpy().tobytes() for part in parts.values()))
    counts = {name: len(part) for name, part in parts.items()}
    found = {"classes": list(dataset.classes), "counts": counts, "targets": targets.hexdigest()}
    return found | {"loader": loader_of(dataset)}


def loader_of(dataset: Dataset) -> str:
    """Say how training images are loaded."""
    return "stream" if isinstance(dataset.train, FileSplit) else "memory"


def other_data(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """Name the first thing in which data sets differ, see `seen`; loaded in two ways, they may differ in counts."""
    names = mine.keys() & theirs.keys() - {"loader"}
    if mine.get("loader") != theirs.get("loader"):
        names &= {"classes"}
    return first_difference({n: mine[n] for n in names}, {n: theirs[n] for n in names})


def reading_of(own: DataSettings) -> dict[str, Any]:
    """Return how files become a data set's images, `size` and `fit`: as its config says, or by its own defaults."""
    taken = data.options_of(own.name)
    asked = {name: getattr(own, name) for name in ("size", "fit") if name in taken}
    found = {name: taken[name].default if value is None else value for name, value in asked.items()}
    return {name: value for name, value in found.items() if value not in (None, inspect.Parameter.empty)}


def load_network(config: Config, dataset: Dataset) -> nn.Module:
    """Build the configured model with the weights of a checkpoint: a run of ours, or a file of anybody's."""
    path = Path(config.finetuned_from or "")
    network = models.build(config.train.model, len(dataset.classes))
    models.load_weights(path / WEIGHTS if path.is_dir() else path, network)
    return network.to(resolve_device(config.device), memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def stage_of(config: Config) -> Stage:
    """Return how a config fine-tunes a classifier."""
    if config.row.perturb is not None:
        raise wrong("method", "one without perturbed views, where the classifier alone is trained", config.method)
    if config.row.weights == "average" or config.evaluation.also:
        found = [config.row.weights, *config.evaluation.also]
        expected = "the last epoch's or the best one's where the classifier alone is trained, and evaluation.also empty"
        raise wrong("train.keep", expected, ", ".join(found))
    return Stage(
        name=config.method,
        method=config.row,
        seed=config.seed,
        augment=config.train.augment,
        own=config.finetune,
        gamma=config.gamma,
        filter=config.filter,
        constraint=config.constraint,
        engine=config.engine,
        batch_size=config.evaluation.batch_size,
    )


def shift_grid(config: Config) -> ShiftGrid:
    """Return which corruptions a config evaluates."""
    own = config.evaluation
    return ShiftGrid(own.corruptions, own.constants, own.frost, own.corrupted)


def evaluate_with(
    config: Config,
    model: nn.Module,
    dataset: Dataset,
    preprocess: Preprocessing,
    *,
    progress: bool = True,
    histograms: bool = True,
    earlier: Evaluation | None = None,
) -> Evaluation:
    """Evaluate as a config says; with the temperatures of an earlier evaluation, if one is given."""
    own = config.evaluation
    return evaluate(
        model,
        dataset,
        preprocess=preprocess,
        corruptions=own.corruptions,
        constants=own.constants,
        frost=own.frost,
        corrupted=own.corrupted,
        bins=own.bins,
        temperatures=own.temperatures,
        temperature_criterion=own.temperature_criterion,
        histograms=histograms,
        batch_size=own.batch_size,
        earlier=earlier,
        progress=progress,
    )
