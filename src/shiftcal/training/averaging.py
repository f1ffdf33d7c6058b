"""The average of a model's weights over the steps of a run."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from shiftcal._errors import wrong
from shiftcal.training.engine.distributed import average_statistics

_BatchNorm = nn.modules.batchnorm._BatchNorm


class WeightAverage:
    """Carry the running mean of a model's trainable parameters, m ← d·m + (1 − d)·θ, from step to step.

    The decay d rises from 0.18 to `decay`, as (1 + t)/(10 + t) at step t, so that the first weights are soon forgotten.
    Nothing is read back from the device, and the mean stays where it is: the update can be captured with the step.
    """

    def __init__(self, model: nn.Module, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise wrong("decay", "in [0, 1)", decay)
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not named:
            raise wrong("model", "one with parameters that are trained", type(model).__name__)
        self.decay, self._names, self._parameters = decay, list(named), list(named.values())
        self._means = [p.detach().clone() for p in self._parameters]
        self._steps = torch.zeros((), device=self._means[0].device)

    def update(self, *_: object) -> None:
        """Take in the weights after a step."""
        weights = [p.detach() for p in self._parameters]  # now: `model.to(…)` gives a parameter other storage
        self._means = [mean.to(weight) for mean, weight in zip(self._means, weights, strict=True)]
        self._steps = self._steps.to(weights[0].device)
        self._steps += 1
        decay = ((1 + self._steps) / (10 + self._steps)).clamp(max=self.decay)
        change = torch._foreach_sub(weights, self._means)
        torch._foreach_mul_(change, 1 - decay)
        torch._foreach_add_(self._means, change)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs."""
        return {"steps": self._steps.clone()} | dict(zip(self._names, (m.clone() for m in self._means), strict=True))

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from a checkpoint's state."""
        self._steps.copy_(state["steps"])
        for name, mean in zip(self._names, self._means, strict=True):
            mean.copy_(state[name])

    def averaged(self, model: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
        """Return a copy of the model with the averaged weights.

        The statistics of batch-norm are those of the averaged weights: they are taken anew, as plain means over
        batches of training images as the model takes them.
        """
        copied = copy.deepcopy(model)
        parameters = dict(copied.named_parameters())
        with torch.no_grad():
            for name, mean in zip(self._names, self._means, strict=True):
                parameters[name].copy_(mean)
        layers = [m for m in copied.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        if layers:
            _retake_statistics(copied, layers, batches)
        for module, original in zip(copied.modules(), model.modules(), strict=True):
            module.training = original.training  # some may be frozen in evaluation mode
        return copied


def _retake_statistics(model: nn.Module, layers: list[_BatchNorm], batches: Iterable[Tensor]) -> None:
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean over the batches
        layer.train()
    found = False
    with torch.no_grad():
        for images in batches:
            model(images)
            found = True
    if not found:
        raise wrong("batches", "at least one, for the statistics of batch-norm", "none (an iterator that is used up?)")
    average_statistics(model)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
