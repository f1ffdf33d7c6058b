"""Metrics on two ranks, each of which sees its part of the batches; python metric_ranks.py OUT."""

import sys
from pathlib import Path

import torch
from leaving import leave
from torch import distributed as dist
from torchmetrics import Metric, MetricCollection

from shiftcal.integrations import torchmetrics

CLASSES = 5


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Seven batches of different sizes, so that ranks have different numbers."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for size in (10, 3, 8, 1, 20, 6, 9):
        logits = 2 * torch.randn(size, CLASSES, generator=generator)
        found.append((logits.softmax(-1), torch.randint(0, CLASSES, (size,), generator=generator)))
    return found


def metrics() -> dict[str, Metric]:
    found = {}
    for name in torchmetrics.__all__:
        kind = getattr(torchmetrics, name)
        found[name] = kind(CLASSES) if issubclass(kind, torchmetrics._OfClasses) else kind()
    return found


def computed(rank: int, ranks: int) -> dict[str, torch.Tensor]:
    collection = MetricCollection(metrics())
    for probabilities, targets in batches()[rank::ranks]:
        collection.update(probabilities, targets)
    return collection.compute()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = computed(dist.get_rank(), dist.get_world_size())
    torch.save(found, Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    leave()
