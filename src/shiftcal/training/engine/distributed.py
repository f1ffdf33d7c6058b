"""Ranks that train one model: each computes its rows of a batch, and the gradients are those of the global batch.

Every rank computes the logits of its rows, all gather them, and every rank computes the losses of the whole batch from
them. So any loss, also one that is no mean over samples, is that of the whole batch, and the sum over the ranks of what
each finds for the parameters is its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from shiftcal import _distributed
from shiftcal.gradients import Gradients
from shiftcal.gradients.flat import split, widest
from shiftcal.gradients.reduce import all_rows
from shiftcal.training.inputs import Inputs, rows_of_views
from shiftcal.training.objective import Objective
from shiftcal.training.step import Ops, Statistics, count_correct, gradients_of

BUCKET = 4 * 2**20  # bytes of gradients that are reduced together: measured in benchmarks/processes.py


class ShardedOps:
    """The operations of a step over ranks.

    Gradients of a plain step are reduced in buckets while the backward pass goes on (`overlap`); those of two losses
    are reduced together.
    """

    def __init__(self, *, overlap: bool) -> None:
        self._overlap = overlap
        self._under_way: list[Any] = []

    def ops(self) -> Ops:
        """Return the operations for `training_step`."""
        return Ops(gradients=self.gradients, all_reduce=self.all_reduce)

    def gradients(
        self,
        model: nn.Module,
        objective: Objective,
        parameters: Sequence[Tensor],
        constrained: int,
        mix: Inputs,
        original: Inputs | None,
    ) -> tuple[Gradients, Statistics]:
        """Compute this rank's share of the gradients of the whole batch's losses."""
        mix, original = shard(mix), None if original is None else shard(original)
        if objective.constraint is not None or not self._overlap:
            found, stats = gradients_of(model, objective, parameters, constrained, mix, original, gathered_forward)
            return found.flattened(parameters), stats
        logits = gathered_forward(model, mix)
        loss = objective.main(logits, mix)
        buckets = Buckets(parameters)
        gradients = buckets.backward(loss)
        self._under_way = buckets.under_way
        return gradients, Statistics(loss.detach(), count_correct(logits[: len(mix.targets)], mix))

    def all_reduce(self, gradients: Gradients) -> Gradients:
        """Sum the gradients over the ranks, or wait for the buckets that are under way."""
        if not self._under_way:
            _distributed.all_reduce(gradients.flat)
        while self._under_way:
            self._under_way.pop().wait()
        return gradients


def shard(inputs: Inputs) -> Inputs:
    """Take of a batch's images those that this rank computes; classes stay those of all."""
    if inputs.local:
        return inputs
    count = len(inputs.targets)
    # More ranks than rows: one image goes through for nothing, so that all ranks take the same steps.
    rows = _distributed.local_rows(count) if _distributed.local_size(count) else slice(1)
    return replace(inputs, images=rows_of_views(inputs.images, count, rows), local=True)


def gathered_forward(model: nn.Module, inputs: Inputs) -> Tensor:
    """Compute the logits of a batch, each rank those of its images, and gather them."""
    logits: Tensor = model(inputs.images)
    count = len(inputs.targets)
    here = _distributed.local_size(count)
    views = logits.view(-1, max(here, 1), logits.shape[-1])[:, :here]
    gathered: Tensor = _Gather.apply(views.transpose(0, 1), count)  # type: ignore[no-untyped-call]
    return gathered.transpose(0, 1).flatten(0, 1)


class _Gather(torch.autograd.Function):
    """All rows, from those of each rank; backward, each rank's rows of the gradient."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, count: int) -> Tensor:
        ctx.rows = _distributed.local_rows(count)
        return torch.cat(all_rows(local, _distributed.shard_sizes(count)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.rows], None


class Buckets:
    """One flat gradient whose slices are reduced as the backward pass fills them, the last layers first."""

    def __init__(self, parameters: Sequence[Tensor], size: int | None = None) -> None:
        self.parameters, self.under_way = parameters, list[Any]()
        self._vector = torch.zeros(
            sum(p.numel() for p in parameters), dtype=widest(parameters), device=parameters[0].device
        )
        self._places = dict(zip(map(id, parameters), split(self._vector, parameters), strict=True))
        self._buckets = _cut(parameters, self._vector, size or BUCKET)
        self._filled: set[int] = set()

    def backward(self, loss: Tensor) -> Gradients:
        """Run the backward pass; the sums over the ranks are there when what is `under_way` has been waited for."""
        hooks = [p.register_post_accumulate_grad_hook(self._take) for p in self.parameters]
        for p in self.parameters:
            p.grad = None  # the last step's
        try:
            loss.backward()
        finally:
            for hook in hooks:
                hook.remove()
        while self._buckets:  # some parameters have no gradient
            self._send()
        used = tuple(id(p) in self._filled for p in self.parameters)
        return Gradients(self._vector, len(self._vector), used)

    def _take(self, parameter: Tensor) -> None:
        """Copy a gradient to its place. Buckets are sent in their order, which is that of every rank."""
        if parameter.grad is not None:
            self._places[id(parameter)].copy_(parameter.grad)
            parameter.grad = None
        self._filled.add(id(parameter))
        while self._buckets and self._buckets[0][0] <= self._filled:
            self._send()

    def _send(self) -> None:
        _, part = self._buckets.pop(0)
        self.under_way.append(dist.all_reduce(part, async_op=True))


def _cut(parameters: Sequence[Tensor], vector: Tensor, size: int) -> list[tuple[set[int], Tensor]]:
    """Cut a flat gradient into slices of about `size` bytes, from its end: the parameters of each, and the slice."""
    buckets: list[tuple[set[int], Tensor]] = []
    members, end, start = set[int](), len(vector), len(vector)
    for p in reversed(parameters):
        members.add(id(p))
        start -= p.numel()
        if (end - start) * vector.element_size() >= size:
            buckets.append((members, vector[start:end]))
            members, end = set(), start
    return [*buckets, (members, vector[:end])] if members else buckets


def average_statistics(model: nn.Module) -> None:
    """Average over the ranks the running means of batch-norm, which each has gathered from its rows alone."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    means = [t for layer in layers for t in (layer.running_mean, layer.running_var) if t is not None]
    if not _distributed.is_distributed() or not means:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in means])
    _distributed.all_reduce(flat.div_(_distributed.world_size()))
    for tensor, part in zip(means, flat.split([t.numel() for t in means]), strict=True):
        tensor.copy_(part.view_as(tensor))


def synchronised(model: nn.Module) -> nn.Module:
    """Let batch-norm use the statistics of all ranks' rows, which torch can do on GPUs alone."""
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return converted
