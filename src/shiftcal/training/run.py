"""A model in training: what the loop moves forward and a checkpoint holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shiftcal import _ranks, data, methods, models
from shiftcal._checks import unknown, wrong
from shiftcal.augment import AUGMENTATIONS
from shiftcal.augment._inputs import on_chosen
from shiftcal.data.dataset import Dataset, FileSplit
from shiftcal.data.loader import Batch, MixedEpoch, Samples, seeded
from shiftcal.filtering import LowPassPolicy
from shiftcal.metrics import CalibrationMeter
from shiftcal.records import first_difference
from shiftcal.training import checkpoint
from shiftcal.training.averaging import WeightAverage
from shiftcal.training.batches import Inputs
from shiftcal.training.captured import Totals
from shiftcal.training.config import Config, from_dict
from shiftcal.training.keeping import BestEpochs
from shiftcal.training.objective import augmented, objectives
from shiftcal.training.optimizer import make_optimizer

_STATISTICS = 200  # batches from which the statistics of batch-norm are taken


class Run:
    """A model in training: what the loop moves forward and a checkpoint holds."""

    def __init__(
        self, config: Config, dataset: Dataset, model: nn.Module | None = None, samples: Samples | None = None
    ) -> None:
        self.config, self.method = config, config.row
        if _ranks.several() and config.train.accumulate > 1 and isinstance(dataset.train, FileSplit):
            expected = "1 where several processes decode from disk (data.loader=memory reads into memory)"
            raise wrong("train.accumulate", expected, config.train.accumulate)
        self.device = torch.device(resolve_device(config.device))
        self.train_split = samples if samples is not None else dataset.train.to(self.device)
        self._validation = dataset.validation.to(self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.model = model or models.build(config.train.model, len(dataset.classes), config.train.weights)
        self.dataset = adapted(dataset, config, self.model)
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if config.train.sync_batch_norm and _ranks.several():
            self.model = synchronised(self.model, self.device)
        self.optimizer = make_optimizer(config.train, self.model)
        self.plain, self.full = objectives(config, self.model)
        wanted = {self.method.weights, *config.evaluation.also}
        self.best = BestEpochs(wanted)
        self.average = WeightAverage(self.model, config.train.average_decay) if "average" in wanted else None
        self.epochs_done = 0
        self.within: dict[str, Any] = {}  # of an epoch that was interrupted
        self.history: list[dict[str, Any]] = []
        self.engine: dict[str, Any] = {}

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass through the training set, the smaller last batch included."""
        return -(-len(self.train_split) // self.config.step_size)

    def active(self, epoch: int) -> bool:
        """Tell whether the warm-up is over: filter and constraint are on."""
        return epoch >= self.config.start_epoch

    def mixed_epoch(self, epoch: int, ratio: float) -> MixedEpoch:
        """Draw what an epoch trains on, with a share of it filtered."""
        policy = low_pass_policy(self.config, ratio)
        return data.mixed_epoch(self.train_split, policy=policy, seed=self.config.seed, epoch=epoch)

    def prepare(self, batch: Batch, generator: torch.Generator, of_method: torch.Generator | None = None) -> Inputs:
        """Crop and flip as the recipe says, then normalise; the low-pass filter was applied before.

        With a generator for it, the method's own augmentation comes in between: for the main batch, not the
        constraint's.
        """
        images = AUGMENTATIONS[self.config.train.augment](batch.images, generator)
        if batch.strength is not None:
            images = self._filter_now(images, batch, batch.strength)
        inputs = augmented(self.method.augment if of_method else None, images, batch, of_method)
        return dataclasses.replace(inputs, images=self.dataset.normalise(inputs.images))

    def _filter_now(self, images: Tensor, batch: Batch, strength: Tensor) -> Tensor:
        """Apply the low-pass filter after crop and flip."""
        if batch.local:
            raise wrong("filter.after_augment", "false where several processes decode from disk", True)
        cell = self.method.low_pass
        low_pass = low_pass_policy(self.config, 0.0)

        def apply(chosen: Tensor, strength: Tensor) -> Tensor:
            return low_pass(self.dataset.truncated(chosen) if cell and cell.truncate else chosen, strength)

        return on_chosen(apply, images, batch.filtered, strength)

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

    @property
    def steps_done(self) -> int:
        """Steps of the epoch under way that an interrupted run had done."""
        return int(self.within.get("steps", 0))

    def pause(self, steps: int, generators: Mapping[str, torch.Generator], totals: Totals, seconds: float) -> None:
        """Remember all that is needed to go on in the middle of an epoch."""
        states = {
            "generators": {name: generator.get_state() for name, generator in generators.items()},
            "random": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }
        self.within = {
            "steps": steps,
            "ranks": _ranks.gather_objects(states),
            "totals": totals.state(),
            "seconds": seconds + self.within.get("seconds", 0.0),
        }

    def restore_within(self, generators: Mapping[str, torch.Generator], totals: Totals) -> None:
        """Go on in the middle of an epoch, if the run was interrupted there."""
        if not self.within:
            return
        states = self.within["ranks"][_ranks.rank() % len(self.within["ranks"])]
        for name, generator in generators.items():
            generator.set_state(states["generators"][name])
        torch.set_rng_state(states["random"])
        if states["cuda"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self.device)
        totals.restore(self.within["totals"])

    def validate(self) -> dict[str, float]:
        """Measure the model on the validation images, as they are."""
        meter = CalibrationMeter(len(self.dataset.classes), self.config.evaluation.bins)
        self.model.eval()
        with torch.inference_mode():
            for _, part in self._validation.parts(self.config.evaluation.batch_size, _ranks.rank(), _ranks.world()):
                logits = self.model(self.dataset.normalise(part.images))
                meter.update(logits.double().softmax(-1).cpu(), part.targets.cpu())
        first, *others = _ranks.gather_objects(meter)
        for other in others:
            first.merge(other)
        meter = first
        return {name: value for name, value in meter.compute().items() if name in ("accuracy", "ece", "nll")}

    def weights(self, name: str) -> tuple[nn.Module, int]:
        """Return the model with the weights of that name, see `train.keep`, and the epoch they are from."""
        if name == "last":
            return self.model, self.epochs_done
        if name == "average" and self.average is not None:
            return self.average.averaged(self.model, self._training_images()), self.epochs_done
        return self.best.model(name, self.model)

    def _training_images(self) -> Iterator[Tensor]:
        """Yield images as a step takes them, of an epoch that no step saw: for the statistics of batch-norm."""
        epoch, own = self.config.train.epochs, self.method.low_pass
        mixed = self.mixed_epoch(epoch, self.config.filter.ratio if own and self.active(epoch) else 0.0)
        augment, of_method = (
            seeded(self.config.seed, epoch, name, self.device) for name in ("augment", "method augment")
        )
        for batch in islice(mixed.batches(self.config.train.batch_size), _STATISTICS):
            yield self.prepare(batch, augment, of_method).images

    def is_best(self) -> bool:
        """Tell whether the last epoch has the lowest validation loss (NLL) so far."""
        losses = [entry["validation"]["nll"] for entry in self.history if entry.get("validation")]
        return bool(losses) and losses[-1] == min(losses)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the weights."""
        momentum = self.full.momentum.state_dict() if self.full.momentum else {}
        state = {"optimizer": self.optimizer.state_dict(), "constraint_momentum": momentum}
        state |= {"best": self.best.state_dict(), "average": self.average.state_dict() if self.average else {}}
        return state | {"config": self.config.to_dict(), "epochs": self.epochs_done, "within": self.within}

    def load(self, path: Path) -> None:
        """Take up a checkpoint."""
        state, history = checkpoint.load(path, self.model)
        stored = from_dict(state["config"]).to_dict()  # with keys that came later
        differing = first_difference(self.config.to_dict(), stored)
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
        self.best.load_state_dict(state.get("best", {}), self.model)
        if self.average:
            self.average.load_state_dict(state["average"])
        self.epochs_done, self.within, self.history = state["epochs"], state["within"], history


def low_pass_policy(config: Config, ratio: float) -> LowPassPolicy:
    """Return the policy of the method's row for a share of the images; without a row's, the plain one."""
    cell = config.row.low_pass or methods.LowPass()
    strengths = config.filter.radii if cell.filter == "fft" else config.filter.qualities
    return LowPassPolicy(ratio, strengths, cell.filter, cell.subsampling, cell.redraw, cell.after_augment and ratio > 0)


def synchronised(model: nn.Module, device: torch.device) -> nn.Module:
    """Let batch-norm use the statistics of all processes' rows, which torch can do on GPUs alone."""
    if device.type != "cuda":
        raise wrong("train.sync_batch_norm", "false for several processes without GPUs", True)
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted


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
