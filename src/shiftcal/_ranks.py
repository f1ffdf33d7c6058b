"""Several processes that train one model: what each does of a batch, and how they put it together.

A process is alone unless torch.distributed has been initialised, as `torchrun` makes the command line do. Gradients are
those of the global batch: every rank computes the logits of its rows, all gather them, and every rank computes the
losses of the whole batch from them. So any loss, also one that is no mean over samples, is that of the whole batch.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

_TIMEOUT = timedelta(minutes=10)
_BUCKET = 4 * 2**20  # bytes of gradients that travel together: measured in benchmarks/processes.py
_hosts: Any = None  # where processes talk without their GPUs; None: as they do about everything


def join() -> None:
    """Join the other processes; each takes a GPU of its own where there are any."""
    global _hosts
    # Loaded later, its functions have the group as their default, and its threads live on into the interpreter's end.
    import torch.distributed.nn
    from torch.distributed.rendezvous import rendezvous

    if dist.is_initialized():
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store, number, count = next(rendezvous("env://", timeout=_TIMEOUT))
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=_of_this_start(store, number, count),
        rank=number,
        world_size=count,
        timeout=_TIMEOUT,
    )
    _hosts = dist.new_group(backend="gloo", timeout=_TIMEOUT) if cuda else None


def _of_this_start(store: Any, number: int, count: int) -> Any:
    """Find a part of the store that no earlier start of the processes has written to.

    When torchrun starts processes again after one died, the store still has the addresses of the dead, and whoever
    reads them before they are overwritten waits for a process that is no more. So every process greets the first with
    a word of its own, and the first answers each word it sees, also those of the dead, with the name of the new part.
    """
    from torch.distributed.distributed_c10d import PrefixStore

    if number > 0:
        greeting = uuid.uuid4().hex
        store.set(f"greeting/{number}", greeting)
        name = store.get(f"answer/{greeting}").decode()
        store.set(f"{name}/here/{number}", "")
        return PrefixStore(name, store)
    name, missing, deadline = uuid.uuid4().hex, set(range(1, count)), time.monotonic() + _TIMEOUT.total_seconds()
    while missing:
        for other in tuple(missing):
            if store.check([f"greeting/{other}"]):
                store.set(f"answer/{store.get(f'greeting/{other}').decode()}", name)
            if store.check([f"{name}/here/{other}"]):
                missing.remove(other)
        if time.monotonic() > deadline:
            raise TimeoutError(f"of {count} processes, those with rank {sorted(missing)} did not come")
        time.sleep(0.01)
    return PrefixStore(name, store)


def leave() -> None:
    """Leave the other processes."""
    global _hosts
    if dist.is_initialized():
        dist.destroy_process_group()
    _hosts = None


def world() -> int:
    """Count the processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def several() -> bool:
    """Tell whether there are other processes to talk to."""
    return world() > 1


def rank() -> int:
    """Return this process's number, from 0."""
    return dist.get_rank() if several() else 0


def barrier() -> None:
    """Wait for all."""
    if several():
        dist.barrier(_hosts)


def sizes(count: int) -> list[int]:
    """Say how many rows of a batch each rank computes: as equal as can be, the first ones take one more."""
    least, rest = divmod(count, world())
    return [least + (number < rest) for number in range(world())]


def share(count: int) -> int:
    """Say how many rows of a batch this rank computes."""
    return sizes(count)[rank()]


def rows(count: int) -> slice:
    """Say which rows of a batch this rank computes."""
    start = sum(sizes(count)[: rank()])
    return slice(start, start + share(count))


class _Gather(torch.autograd.Function):
    """All rows, from those of each rank; backward, each rank's rows of the gradient.

    Every rank computes the same loss from all rows. The sum over the ranks of what each then finds for the parameters
    is the gradient of that loss, so that nothing has to be added up here.
    """

    @staticmethod
    def forward(ctx: Any, local: Tensor, count: int) -> Tensor:
        ctx.rows, shares = rows(count), sizes(count)
        padded = local.new_zeros(max(shares), *local.shape[1:])
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in shares]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, shares, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.rows], None


def gather_logits(local: Tensor, count: int) -> Tensor:
    """Put together the logits of a batch of `count` rows, of which each rank has its own, differentiably."""
    gathered: Tensor = _Gather.apply(local, count)  # type: ignore[no-untyped-call]
    return gathered


def add_up(tensor: Tensor) -> None:
    """Sum a tensor over the ranks, in place."""
    if several():
        dist.all_reduce(tensor)


@contextmanager
def adding_up(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Sum over the ranks the gradients that a backward pass leaves in `.grad`, the last layers' while it goes on."""
    if not several():
        yield
        return
    buckets = _Buckets(parameters)
    hooks = [p.register_post_accumulate_grad_hook(buckets.add) for p in parameters]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    buckets.finish()


class _Buckets:
    """Gradients in the order in which a backward pass finds them, each bucket sent off when it is full."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._buckets: list[list[Tensor]] = []
        room = 0
        for p in reversed(parameters):
            if room <= 0:
                self._buckets.append([])
                room = _BUCKET
            self._buckets[-1].append(p)
            room -= p.nbytes
        self._ready: set[int] = set()
        self._sent = 0
        self._under_way: list[tuple[list[Tensor], Tensor, Any]] = []

    def add(self, parameter: Tensor) -> None:
        """Note that a gradient is there. Buckets leave in their order, which is that of every rank."""
        self._ready.add(id(parameter))
        while self._sent < len(self._buckets) and all(id(p) in self._ready for p in self._buckets[self._sent]):
            self._send()

    def _send(self) -> None:
        gradients = [p.grad for p in self._buckets[self._sent] if p.grad is not None]
        self._sent += 1
        if gradients:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            self._under_way.append((gradients, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        """Send what is left, since some parameters have no gradient, and put the sums where the gradients were."""
        while self._sent < len(self._buckets):
            self._send()
        for gradients, flat, work in self._under_way:
            work.wait()
            _lay_out(flat, gradients)


def add_up_all(tensors: Sequence[Tensor]) -> None:
    """Sum tensors over the ranks in place, in one reduction."""
    if several() and tensors:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        _lay_out(flat, tensors)


def _lay_out(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def gather_objects(value: Any) -> list[Any]:
    """Collect a value from every rank."""
    if not several():
        return [value]
    values: list[Any] = [None] * world()
    dist.all_gather_object(values, value, _hosts)
    return values


def average_statistics(model: nn.Module) -> None:
    """Average over the ranks the running means of batch-norm, which each has gathered from its rows alone."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    means = [t for layer in layers for t in (layer.running_mean, layer.running_var) if t is not None]
    if several() and means:
        torch._foreach_div_(means, world())
        add_up_all(means)
