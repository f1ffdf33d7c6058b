"""Gradients and logits over the ranks of a user's process group."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch import distributed as dist

from shiftcal._errors import wrong
from shiftcal.gradients.flat import Gradients


def ranks_in(process_group: Any) -> int:
    """Count the ranks of a group, by default of all; 1 where no group is initialised."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    if process_group is not None and dist.get_rank(process_group) < 0:
        raise wrong("process_group", "one that this rank is in", f"one without rank {dist.get_rank()}")
    return dist.get_world_size(process_group)


def mean_over_ranks(gradients: Gradients, parameters: Sequence[Tensor], process_group: Any = None) -> Gradients:
    """Average gradients over the ranks in one reduction. A parameter counts as used where some rank used it."""
    ranks = ranks_in(process_group)
    if ranks == 1:
        return gradients
    gradients = gradients.flattened(parameters)
    vector, count = gradients.flat, len(gradients.used)
    flags = torch.tensor(gradients.used, dtype=vector.dtype, device=vector.device)
    both = torch.cat([vector, flags])
    dist.all_reduce(both, group=process_group)
    used = gradients.used
    if not all(used):  # only then may another rank have used more, and is it worth waiting for the device
        used = tuple(flag > 0 for flag in both[-count:].tolist())
    return replace(gradients, vector=both[:-count].div_(ranks), used=used)


def check_not_sharded(parameters: Sequence[Tensor]) -> None:
    """Raise where a parameter is a shard: a rank then has only a part of each gradient."""
    of_fsdp = _fsdp_parameters()
    for p in parameters:
        kind = "FSDP" if id(p) in of_fsdp else _sharding(p)
        if kind is not None:
            expected = (
                "whole on every rank: a rule needs dot products over all of them "
                "(wrap the model in DistributedDataParallel, or leave it unwrapped)"
            )
            raise wrong("parameters", expected, f"a shard of {kind}")


def _fsdp_parameters() -> set[int]:
    """Find the parameters of modules under `fully_shard`: between forward and backward pass they look like others."""
    states = getattr(sys.modules.get("torch.distributed._composable_state"), "_module_state_mapping", {})
    sharded = [module for module, state in list(states.items()) if type(state()).__name__ == "FSDPState"]
    return {id(p) for module in sharded for p in module.parameters()}


def _sharding(parameter: Tensor) -> str | None:
    if type(parameter).__name__ == "DTensor" or hasattr(parameter, "_local_tensor"):
        return "FSDP (a DTensor)"
    if hasattr(parameter, "_is_flat_param") or type(parameter).__name__ == "FlatParameter":
        return "FSDP (a FlatParameter)"
    if getattr(parameter, "_fsdp_flattened", False):
        return "FSDP (with use_orig_params)"
    if any(hasattr(parameter, name) for name in ("ds_id", "ds_tensor", "_hp_mapping")):
        return "DeepSpeed ZeRO"
    return None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, sizes: list[int], rank: int, group: Any) -> Tensor:
        ctx.start, ctx.count, ctx.ranks = sum(sizes[:rank]), len(local), len(sizes)
        return torch.cat(all_rows(local, sizes, group))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        # Every rank computes the same loss from all rows. The sum over the ranks of what each finds for the parameters
        # is its gradient; an average over the ranks divides that by their number, hence the factor.
        return gradients[0][ctx.start : ctx.start + ctx.count] * ctx.ranks, None, None, None


def gather(
    logits: Float[Tensor, "local classes"], targets: Int[Tensor, " local"], process_group: Any = None
) -> tuple[Float[Tensor, "batch classes"], Int[Tensor, " batch"]]:
    """Gather the logits and targets of all ranks, differentiably, for a loss of the whole batch.

    A constraint such as Soft-ECE is not a mean over samples: the average of the ranks' values is not the value of the
    whole batch. Compute it on what this returns. The backward pass suits gradients that are averaged over the ranks, as
    `rectified_backward` and DistributedDataParallel do it. Ranks may have different numbers of rows, so gather the rows
    that count: `gather(logits[~filtered], targets[~filtered])`.
    Without a process group the arguments are returned as they are.

    Args:
        logits: This rank's logits.
        targets: This rank's class indices.
        process_group: The ranks to gather from; the default group if there is one.

    Example:
        >>> logits, targets = torch.zeros(4, 10), torch.arange(4)
        >>> gather(logits, targets)[0].shape  # one process
        torch.Size([4, 10])
    """
    ranks = ranks_in(process_group)
    if ranks == 1:
        return logits, targets
    count = torch.tensor([len(logits)], device=logits.device)
    counts = [torch.empty_like(count) for _ in range(ranks)]
    dist.all_gather(counts, count, group=process_group)
    sizes = torch.cat(counts).tolist()
    rows: Tensor = _Gather.apply(logits, sizes, dist.get_rank(process_group), process_group)  # type: ignore[no-untyped-call]
    return rows, torch.cat(all_rows(targets, sizes, process_group))


def all_rows(local: Tensor, sizes: Sequence[int], group: Any = None) -> list[Tensor]:
    """Gather every rank's rows, padded on the way to as many as the largest has."""
    padded = local.new_zeros(max(sizes), *local.shape[1:])
    padded[: len(local)] = local
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]
