"""What training moves forward and a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from shiftcal import _distributed
from shiftcal._errors import CheckpointError
from shiftcal.methods import Method
from shiftcal.training.averaging import WeightAverage
from shiftcal.training.keeping import BestEpochs
from shiftcal.training.objective import Objective, objectives
from shiftcal.training.optimizer import make_optimizer
from shiftcal.training.settings import ConstraintSettings, GammaSettings, TrainSettings
from shiftcal.training.totals import Totals


@dataclass
class TrainState:
    """A model in training: what the loop moves forward and a checkpoint holds.

    Attributes:
        model: The model.
        optimizer: Its optimiser.
        plain: The objective of the warm-up.
        full: The objective after it, with the running mean of the constraint's gradient.
        best: Copies of the weights of the best epochs, as far as they are wanted.
        average: The average of the weights, if it is wanted.
        epochs_done: How many epochs are done.
        partial: Of an epoch that was interrupted: steps, random states and sums.
        history: The statistics of each epoch.
        engine: How steps were executed.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    plain: Objective
    full: Objective
    best: BestEpochs
    average: WeightAverage | None
    epochs_done: int = 0
    partial: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def steps_done(self) -> int:
        """Steps of the epoch under way that were done before an interruption."""
        return int(self.partial.get("steps", 0))

    def pause(self, steps: int, generators: Mapping[str, torch.Generator], totals: Totals, seconds: float) -> None:
        """Remember all that is needed to continue in the middle of an epoch."""
        cuda = self.device.type == "cuda"
        states = {
            "generators": {name: generator.get_state() for name, generator in generators.items()},
            "random": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(self.device) if cuda else None,
        }
        self.partial = {
            "steps": steps,
            "ranks": _distributed.all_gather_object(states),
            "totals": totals.state(),
            "frozen": bool(self.optimizer.found_inf),  # type: ignore[attr-defined]
            "seconds": seconds + self.partial.get("seconds", 0.0),
        }

    def restore_partial(self, generators: Mapping[str, torch.Generator], totals: Totals) -> None:
        """Continue in the middle of an epoch, if the run was interrupted there."""
        if not self.partial:
            return
        states = self.partial["ranks"][_distributed.rank() % len(self.partial["ranks"])]
        for name, generator in generators.items():
            generator.set_state(states["generators"][name])
        torch.set_rng_state(states["random"])
        if states["cuda"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], self.device)
        totals.restore(self.partial["totals"])
        self.optimizer.found_inf.fill_(self.partial.get("frozen", False))  # type: ignore[attr-defined]

    def weights(self, name: str, images: Callable[[torch.device], Iterable[Tensor]]) -> tuple[nn.Module, int]:
        """Return a model with the weights of that name, see `train.keep`, and the epoch that they are from.

        `images` are training images on a device, for the statistics of batch-norm.
        """
        if name == "last":
            return self.model, self.epochs_done
        if name == "average" and self.average is not None:
            return self.average.averaged(self.model, images(self.device)), self.epochs_done
        return self.best.model(name, self.model)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside the weights and the history."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "constraint_momentum": self.full.momentum.state_dict() if self.full.momentum else {},
            "best": self.best.state_dict(),
            "average": self.average.state_dict() if self.average else {},
            "epochs": self.epochs_done,
            "partial": self.partial,
        }

    def load_state_dict(self, state: Mapping[str, Any], history: list[dict[str, Any]]) -> None:
        """Continue from a checkpoint whose weights are in the model already; earlier versions' will do."""
        first = self.optimizer.param_groups[0]
        here: dict[str, Any] = {k: first[k] for k in ("lr", "capturable") if k in first}  # they depend on the device
        self.optimizer.load_state_dict(state["optimizer"])
        for group in self.optimizer.param_groups:
            group.update(here)
        if self.full.momentum and state["constraint_momentum"]:  # none in a warm-up that was shared
            self.full.momentum.load_state_dict(state["constraint_momentum"])
            self.full.momentum.to(self.device)
        self.best.load_state_dict(state.get("best", {}), self.model)
        if self.average:
            if not state.get("average"):
                raise CheckpointError(
                    "checkpoint", "with an average of the weights, which this run keeps", "one without"
                )
            self.average.load_state_dict(state["average"])
        partial = state["partial"] if "partial" in state else state["within"]
        self.epochs_done, self.partial, self.history = state["epochs"], dict(partial), history


def start_state(
    model: nn.Module,
    method: Method,
    train: TrainSettings,
    gamma: GammaSettings,
    constraint: ConstraintSettings,
    *,
    wanted: frozenset[str] = frozenset(),
    class_prior: tuple[float, ...] | None = None,
) -> TrainState:
    """Start training a model: optimiser, objectives, and what keeps the wanted weights, see `train.keep`."""
    plain, full = objectives(method, model, train, gamma, constraint, class_prior)
    return TrainState(
        model=model,
        optimizer=make_optimizer(train, model),
        plain=plain,
        full=full,
        best=BestEpochs(wanted),
        average=WeightAverage(model, train.average_decay) if "average" in wanted else None,
    )
