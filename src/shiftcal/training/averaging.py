"""The average of a model's weights over the steps of a run."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shiftcal._errors import wrong
from shiftcal.training.engine.distributed import average_statistics

_BatchNorm = nn.modules.batchnorm._BatchNorm
_TRAINED = "/batch_norm"  # no parameter's name: these have no slash


class WeightAverage:
    """Carry the running mean of a model's trainable parameters, m ← d·m + (1 − d)·θ, from step to step.

    The decay d rises from 0.18 to `decay`, as (1 + t)/(10 + t) at step t, so that the first weights are soon forgotten.
    Means are float32 at least: in half precision they would stand still. Nothing is read back from the device, and the
    mean stays where it is: the update can be captured with the step.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise wrong("decay", "in [0, 1)", decay)
        named = {_plain(name): p for name, p in _unwrapped(model).named_parameters() if p.requires_grad}
        if not named:
            raise wrong("model", "one with parameters that are trained", type(model).__name__)
        self.decay, self._names, self._parameters = decay, list(named), list(named.values())
        self._means = [p.detach().to(_mean_type(p), copy=True) for p in self._parameters]
        self._steps = torch.zeros((), device=self._means[0].device)
        self._layers = _batch_norms(_unwrapped(model))
        self._trained: set[str] | None = None  # layers that took statistics in a step; none was seen yet

    def update(self, *_: object) -> None:
        """Take in the weights after a step."""
        trained = {name for name, layer in self._layers.items() if layer.training}
        self._trained = trained if self._trained is None else self._trained | trained
        weights = [p.detach() for p in self._parameters]  # now: `model.to(…)` gives a parameter other storage
        weights = [weight.to(_mean_type(weight)) for weight in weights]
        self._means = [mean.to(weight) for mean, weight in zip(self._means, weights, strict=True)]
        self._steps = self._steps.to(weights[0].device)
        self._steps += 1
        decay = ((1 + self._steps) / (10 + self._steps)).clamp(max=self.decay)
        change = torch._foreach_sub(weights, self._means)
        torch._foreach_mul_(change, 1 - decay)
        torch._foreach_add_(self._means, change)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs."""
        means = dict(zip(self._names, (m.clone() for m in self._means), strict=True))
        if self._trained is None:
            return {"steps": self._steps.clone()} | means
        trained = torch.tensor([name in self._trained for name in self._layers], dtype=torch.bool)
        return {"steps": self._steps.clone(), _TRAINED: trained} | means

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint's state; one of another model changes nothing."""
        self._check_state(state)
        self._steps.copy_(state["steps"])
        for name, mean in zip(self._names, self._means, strict=True):
            mean.copy_(state[name])
        if _TRAINED in state:
            flags = zip(self._layers, state[_TRAINED].tolist(), strict=True)
            self._trained = {name for name, trained in flags if trained}

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        """Raise unless a state has the same parameters with the same shapes, and as many batch-norm layers."""
        wanted, same = ("steps", *self._names), "that of an average of the same parameters"
        if missing := [name for name in wanted if name not in state]:
            raise wrong("state", same, f"one without {_some(missing)}")
        if more := [name for name in state if name not in (*wanted, _TRAINED)]:
            raise wrong("state", same, f"one with {_some(more)} too")
        for name, mean in zip(self._names, self._means, strict=True):
            if mean.shape != state[name].shape:
                raise wrong("state", f"one where {name} has shape {list(mean.shape)}", list(state[name].shape))
        if _TRAINED in state and len(state[_TRAINED]) != len(self._layers):  # earlier versions did not keep it
            raise wrong("state", f"one of {len(self._layers)} batch-norm layers", f"{len(state[_TRAINED])} layers")

    def averaged(self, model: nn.Module, batches: Iterable[Tensor | Sequence[Any]]) -> nn.Module:
        """Return a copy of the model with the averaged weights.

        The statistics of batch-norm are those of the averaged weights: they are taken anew, as plain means over
        batches of training images as the model takes them. Layers that were in evaluation mode in every step, as
        frozen ones are, keep their statistics. Where there are several ranks, all call this, each with its own images:
        the statistics are those of all.

        Args:
            model: The model whose average this is, wrapped (DistributedDataParallel, `torch.compile`) or not; the copy
                is not.
            batches: Images, or pairs that begin with them.
        """
        copied = copy.deepcopy(_unwrapped(model))
        parameters = {_plain(name): p for name, p in copied.named_parameters()}
        missing = [name for name in self._names if name not in parameters]
        if missing:
            raise wrong("model", "the one that was averaged", f"{type(model).__name__} without {_some(missing)}")
        with torch.no_grad():
            for name, mean in zip(self._names, self._means, strict=True):
                parameters[name].copy_(mean)
        modes = [module.training for module in copied.modules()]  # some may be frozen in evaluation mode
        layers = [layer for name, layer in _batch_norms(copied).items() if self._takes_statistics(name, layer, copied)]
        if layers:
            _retake_statistics(copied, layers, batches)
        for module, training in zip(copied.modules(), modes, strict=True):
            module.training = training
        return copied

    def _takes_statistics(self, name: str, layer: nn.Module, model: nn.Module) -> bool:
        if self._trained is not None:
            return name in self._trained
        return layer.training or not model.training


def _retake_statistics(model: nn.Module, layers: list[_BatchNorm], batches: Iterable[Tensor | Sequence[Any]]) -> None:
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean over the batches
        layer.train()
    found = False
    with torch.no_grad():
        for batch in batches:
            model(batch if isinstance(batch, Tensor) else batch[0])
            found = True
    if not found:
        raise wrong("batches", "at least one, for the statistics of batch-norm", "none (an iterator that is used up?)")
    average_statistics(model)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def _batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    named = model.named_modules()
    return {_plain(name): m for name, m in named if isinstance(m, _BatchNorm) and m.track_running_stats}


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, `torch.compile`, or both."""
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _plain(name: str) -> str:
    """Return a parameter's or layer's name as it is where no layer is compiled."""
    return name.replace("_orig_mod.", "")


def _mean_type(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
