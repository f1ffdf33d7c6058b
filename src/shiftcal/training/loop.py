"""The training loop: epochs of steps, a checkpoint after each."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shiftcal import data, methods, models
from shiftcal._checks import unknown, wrong
from shiftcal._progress import Progress
from shiftcal.augment import AUGMENTATIONS
from shiftcal.data.dataset import Dataset
from shiftcal.data.loader import Batch, MixedEpoch, Samples, seed_of, seeded
from shiftcal.records import first_difference
from shiftcal.training import checkpoint
from shiftcal.training.captured import Engine
from shiftcal.training.config import Config
from shiftcal.training.objective import augmented, objectives
from shiftcal.training.optimizer import make_optimizer
from shiftcal.training.schedule import learning_rate
from shiftcal.training.step import Inputs

_PURPOSES = ("augment", "method augment", "constraint augment")


class Run:
    """A model in training: what the loop moves forward and a checkpoint holds."""

    def __init__(
        self, config: Config, dataset: Dataset, model: nn.Module | None = None, samples: Samples | None = None
    ) -> None:
        self.config, self.method = config, methods.find(config.method)
        self.device = torch.device(resolve_device(config.device))
        self.train_split = samples if samples is not None else dataset.train.to(self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.model = model or models.build(config.train.model, len(dataset.classes), config.train.weights)
        self.dataset = adapted(dataset, config, self.model)
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = make_optimizer(config.train, self.model)
        self.plain, self.full = objectives(config)
        self.epochs_done = 0
        self.history: list[dict[str, Any]] = []
        self.engine: dict[str, Any] = {}

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass through the training set, the smaller last batch included."""
        return -(-len(self.train_split) // self.config.train.batch_size)

    def active(self, epoch: int) -> bool:
        """Tell whether the warm-up is over: filter and constraint are on."""
        return epoch >= self.config.start_epoch

    def mixed_epoch(self, epoch: int, ratio: float) -> MixedEpoch:
        """Draw what an epoch trains on, with a share of it filtered."""
        return data.mixed_epoch(
            self.train_split, ratio=ratio, qualities=self.config.filter.qualities, seed=self.config.seed, epoch=epoch
        )

    def prepare(self, batch: Batch, generator: torch.Generator, of_method: torch.Generator | None = None) -> Inputs:
        """Crop and flip as the recipe says, then normalise; the low-pass filter was applied before.

        With a generator for it, the method's own augmentation comes in between: for the main batch, not the
        constraint's.
        """
        images = AUGMENTATIONS[self.config.train.augment](batch.images, generator)
        inputs = augmented(self.method.augment if of_method else None, images, batch, of_method)
        return dataclasses.replace(inputs, images=self.dataset.normalise(inputs.images))

    def step_cost(self, epoch: int) -> int:
        """Estimate the time of a step in units of a plain one: a constraint takes a second pass. For the time left."""
        return 2 if self.active(epoch) and self.full.constraint else 1

    def set_rate(self, value: float) -> None:
        """Set the learning rate; on a GPU it is a tensor there, which a captured step reads."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the weights."""
        momentum = self.full.momentum.state_dict() if self.full.momentum else {}
        state = {"optimizer": self.optimizer.state_dict(), "constraint_momentum": momentum}
        return state | {"config": self.config.to_dict()}

    def load(self, path: Path) -> None:
        """Take up a checkpoint."""
        self.epochs_done, state, self.history = checkpoint.load(path, self.model)
        differing = first_difference(self.config.to_dict(), state["config"])
        if differing:
            raise wrong("checkpoints", "those of the same run", f"{path}, where another run has {differing}")
        first = self.optimizer.param_groups[0]
        here: dict[str, Any] = {k: first[k] for k in ("lr", "capturable") if k in first}  # they depend on the device
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:
            group.update(here)
        if self.full.momentum:
            mean = {name: tensor.to(self.device) for name, tensor in state["constraint_momentum"].items()}
            self.full.momentum.load_state_dict(mean)


def resolve_device(name: str) -> str:
    """Turn "auto" into "cuda" where there is one, else "cpu"."""
    if name not in ("auto", "cpu", "cuda"):
        raise unknown("device", name, ("auto", "cpu", "cuda"))
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise wrong("device", "'cpu' or 'auto', since torch finds no CUDA device", "'cuda'")
    return ("cuda" if available else "cpu") if name == "auto" else name


def load_dataset(config: Config) -> Dataset:
    """Load the data set that a config names; a key that this one does not take may only have its default."""
    taken, options = data.options_of(config.data.name), {}
    for field in dataclasses.fields(config.data)[1:]:  # the first is its name
        value = getattr(config.data, field.name)
        if field.name in taken and value is not None:
            options[field.name] = value
        elif field.name not in (*taken, "workers") and value != field.default:
            raise wrong(f"data.{field.name}", f"left out for {config.data.name}, which does not take it", value)
    dataset = data.load(config.data.name, **options)
    return dataset if config.data.workers is None else dataset.with_workers(config.data.workers)


def adapted(dataset: Dataset, config: Config, model: nn.Module) -> Dataset:
    """Let a data set give a model what it takes: the recipe's word first, then the model's, then the data set's."""
    asked = {"mean": config.train.mean, "std": config.train.std, "input_size": config.train.input_size}
    return dataclasses.replace(dataset, **models.expected_input(model) | {k: v for k, v in asked.items() if v})


def train(
    config: Config,
    dataset: Dataset | None = None,
    *,
    checkpoints: Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Run:
    """Train one method and return the finished run, with its model and the history of its epochs.

    Args:
        config: What to train.
        dataset: What to train on, by default what the config names.
        checkpoints: Directory for a checkpoint after every epoch; None keeps everything in memory.
        resume: Continue from the last checkpoint there is.
        progress: Show a bar on a terminal, a line per epoch elsewhere.
    """
    run = Run(config, dataset or load_dataset(config))
    return go_on(run, checkpoints=checkpoints, resume=resume, progress=progress)


def go_on(run: Run, *, checkpoints: Path | None = None, resume: bool = False, progress: bool = True) -> Run:
    """Train a run to its end, see `train`."""
    config = run.config
    saved = checkpoint.checkpoints(checkpoints) if checkpoints else []
    if saved and not resume:
        raise wrong("checkpoints", "a directory without checkpoints (resume=True continues)", str(saved[-1]))
    if saved:
        run.load(saved[-1])
    costs = [run.steps_per_epoch * run.step_cost(epoch) for epoch in range(config.train.epochs)]
    with Progress(config.method, sum(costs), done=sum(costs[: run.epochs_done]), enabled=progress) as bar:
        steps = run.steps_per_epoch * (config.train.epochs - run.epochs_done)
        engine = Engine(run.model, run.optimizer, config, steps=steps, say=bar.line)
        while run.epochs_done < config.train.epochs:
            with torch.random.fork_rng([run.device] if run.device.type == "cuda" else []):
                torch.manual_seed(seed_of(config.seed, run.epochs_done, "model"))  # dropout and the like
                entry = train_epoch(run, engine, bar)
            if checkpoints:
                checkpoint.save(checkpoints, run.epochs_done, run.model, run.state_dict(), run.history)
            bar.line(f"epoch {entry['epoch']}/{config.train.epochs}  {describe(entry)}")
        run.engine = engine.describe()
    return run


def train_epoch(run: Run, engine: Engine, bar: Progress) -> dict[str, Any]:
    """Train one epoch and add its entry to the history."""
    config, epoch, started = run.config, run.epochs_done, time.perf_counter()
    active = run.active(epoch)
    objective = run.full if active else run.plain
    mixed = run.mixed_epoch(epoch, config.filter.ratio if active and run.method.filter else 0.0)
    independent = objective.constraint is not None and run.method.constraint_batch == "independent"
    originals = mixed.original_batches(config.train.batch_size) if independent else None
    generators = {name: seeded(config.seed, epoch, name, run.device) for name in _PURPOSES}
    engine.totals.reset(constrained=objective.constraint is not None)
    run.model.train()
    for index, batch in enumerate(mixed.batches(config.train.batch_size)):
        run.set_rate(learning_rate(config.train, epoch * run.steps_per_epoch + index, run.steps_per_epoch))
        mix = run.prepare(batch, generators["augment"], generators["method augment"])
        original = run.prepare(next(originals), generators["constraint augment"]) if originals else None
        engine.step(objective, mix, original)
        bar.advance(run.step_cost(epoch))
        if bar.due() and (so_far := engine.totals.peek()):
            bar.show(f"epoch {epoch + 1}/{config.train.epochs}  {describe(so_far)}")
    entry = {
        "epoch": epoch + 1,
        "active": active,
        "filtered": int(mixed.filtered.sum()),
        "learning_rate": float(run.optimizer.param_groups[0]["lr"]),
        **engine.totals.read(),
        "seconds": time.perf_counter() - started,
    }
    _stop_if_frozen(run, epoch, entry)
    run.history.append(entry)
    run.epochs_done += 1
    return entry


def describe(entry: dict[str, Any]) -> str:
    """Write an epoch's numbers in one line."""
    text = f"loss {entry['loss']:.3f}  accuracy {entry['accuracy']:6.1%}"
    return text + (f"  conflicts {entry['conflict_rate']:4.0%}" if "conflict_rate" in entry else "")


def _stop_if_frozen(run: Run, epoch: int, entry: dict[str, Any]) -> None:
    good = entry.pop("good_steps")
    if good < entry.pop("steps"):
        raise FloatingPointError(
            f"The gradient of method '{run.config.method}' was not finite at step {good + 1} of epoch {epoch + 1}; "
            "nothing was updated from there on. Lower the learning rate or clip the gradient (train.clip_norm)."
        )
