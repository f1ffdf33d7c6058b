"""CUDA graphs: a whole step is captured once and replayed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shiftcal.training.inputs import Inputs

Step = Callable[[Inputs, Inputs | None], None]


class Captured:
    """One step in a CUDA graph, with the tensors from which it reads its batch."""

    def __init__(self, step: Step, mix: Inputs, original: Inputs | None, stream: Any) -> None:
        self.mix, self.original = _copied(mix), None if original is None else _copied(original)
        self.graph = torch.cuda.CUDAGraph()
        # Only this thread is captured: the one that pins a streaming loader's memory may wait for the device.
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            step(self.mix, self.original)

    def replay(self, mix: Inputs, original: Inputs | None) -> None:
        """Do the step with another batch of the same shape."""
        _fill(self.mix, mix)
        if self.original is not None and original is not None:
            _fill(self.original, original)
        self.graph.replay()


def _tensors(inputs: Inputs) -> dict[str, Tensor]:
    values = {field.name: getattr(inputs, field.name) for field in dataclasses.fields(inputs)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _copied(inputs: Inputs) -> Inputs:
    copies: dict[str, Any] = {name: value.clone() for name, value in _tensors(inputs).items()}
    return dataclasses.replace(inputs, **copies)


def _fill(places: Inputs, inputs: Inputs) -> None:
    for place, value in zip(_tensors(places).values(), _tensors(inputs).values(), strict=True):
        place.copy_(value)
