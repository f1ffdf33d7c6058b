"""Which weights of a run are kept: the last ones, those of the best epoch, or an average."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

_CRITERIA = {"best_nll": "nll", "best_ece": "ece"}


class BestEpochs:
    """Keeps copies of the weights that had the lowest validation NLL and ECE so far, as far as they are wanted."""

    def __init__(self, wanted: Collection[str]) -> None:
        self.wanted = [name for name in _CRITERIA if name in wanted]
        self._kept: dict[str, dict[str, Any]] = {}

    def after_epoch(self, model: nn.Module, epoch: int, validation: dict[str, float]) -> None:
        """Take a copy where this epoch is better than all before; of equal ones the first stays."""
        for name in self.wanted:
            value = validation[_CRITERIA[name]]
            if name not in self._kept or value < self._kept[name]["value"]:
                weights = {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}
                self._kept[name] = {"epoch": epoch, "value": value, "weights": weights}

    def model(self, name: str, like: nn.Module) -> tuple[nn.Module, int]:
        """Return a copy of a model with the weights of the best epoch, and which that was, counted from 1."""
        kept = self._kept[name]
        copied = copy.deepcopy(like)
        copied.load_state_dict(kept["weights"])
        return copied, int(kept["epoch"])

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return what a checkpoint needs."""
        return dict(self._kept)

    def load_state_dict(self, state: dict[str, dict[str, Any]], like: nn.Module) -> None:
        """Go on from a checkpoint's state, on the devices of a model's tensors."""
        own: dict[str, Tensor] = like.state_dict()
        self._kept = {
            name: kept | {"weights": {key: tensor.to(own[key].device) for key, tensor in kept["weights"].items()}}
            for name, kept in state.items()
        }
