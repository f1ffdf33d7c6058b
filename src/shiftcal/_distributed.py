"""Ranks: who this process is among those that train one model, and how they talk.

A process is alone unless torch.distributed has been initialised, as `torchrun` makes the command line do.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch import distributed as dist

_TIMEOUT = timedelta(minutes=10)
_host_group: Any = None  # a gloo group for objects where tensors go through NCCL; None: the default group


def initialise() -> None:
    """Join the process group that torchrun started; each rank takes a GPU of its own where there are any."""
    global _host_group
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
        store=_fresh_prefix(store, number, count),
        rank=number,
        world_size=count,
        timeout=_TIMEOUT,
    )
    _host_group = dist.new_group(backend="gloo", timeout=_TIMEOUT) if cuda else None


def _fresh_prefix(store: Any, number: int, count: int) -> Any:
    """Return a prefix of the store that no earlier start of these ranks has written to.

    When torchrun restarts the ranks after one died, the store still holds the addresses of the dead ones, and a rank
    that reads one of them hangs. So every rank writes a random greeting, and rank 0 answers each greeting it sees,
    stale ones included, with the name of the new prefix.
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
            minutes = _TIMEOUT.total_seconds() / 60
            raise TimeoutError(f"Ranks {sorted(missing)} of {count} did not join within {minutes:g} minutes.")
        time.sleep(0.01)
    return PrefixStore(name, store)


def destroy() -> None:
    """Leave the process group."""
    global _host_group
    if dist.is_initialized():
        dist.destroy_process_group()
    _host_group = None


def world_size() -> int:
    """Count the ranks."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_distributed() -> bool:
    """Tell whether there are other ranks."""
    return world_size() > 1


def rank() -> int:
    """Return this process's rank."""
    return dist.get_rank() if is_distributed() else 0


def barrier() -> None:
    """Wait for all ranks."""
    if is_distributed():
        dist.barrier(_host_group)


def all_gather_object(value: Any) -> list[Any]:
    """Collect a value from every rank."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, _host_group)
    return values


def all_reduce(tensor: Tensor) -> Tensor:
    """Sum a tensor over the ranks, in place."""
    if is_distributed():
        dist.all_reduce(tensor)
    return tensor


def shard_sizes(count: int) -> list[int]:
    """Say how many rows of a batch each rank computes: as equal as can be, the first ranks take one more."""
    least, rest = divmod(count, world_size())
    return [least + (number < rest) for number in range(world_size())]


def local_size(count: int) -> int:
    """Say how many rows of a batch this rank computes."""
    return shard_sizes(count)[rank()]


def local_rows(count: int) -> slice:
    """Say which rows of a batch this rank computes."""
    start = sum(shard_sizes(count)[: rank()])
    return slice(start, start + local_size(count))
