"""FGR on two ranks: both gradients are averaged over the ranks before the rule, and all ranks end with equal weights.

python examples/own_loop_ddp.py                            starts two processes itself
torchrun --nproc-per-node 2 examples/own_loop_ddp.py       or let torchrun start them
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # loaded after the group is made, it would keep the group to the process's end
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from shiftcal import data, dct_low_pass, losses, metrics, models, rectified_backward

EPOCHS, BATCH, RANKS = 4, 32, 2


def train(rank: int, ranks: int) -> None:
    """Train one rank's share."""
    torch.set_num_threads(1)
    dataset = data.load("shapes", train=1600, validation=200, test=400, texture_amplitude=0.15, texture_match=0.95)
    torch.manual_seed(0)
    model = DistributedDataParallel(models.build("small", num_classes=len(dataset.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        order = torch.randperm(len(dataset.train))  # the same on all ranks, by the seed
        for rows in order.split(ranks * BATCH):
            own = rows[rank::ranks]
            images, targets = dataset.train.images[own], dataset.train.targets[own]
            filtered = torch.arange(len(own)) < 2
            images[filtered] = dct_low_pass(images[filtered], 18)
            logits = model(images.float() / 127.5 - 1)
            optimizer.zero_grad()
            rectified_backward(
                losses.dual_focal(logits, targets, gamma=0.5),
                losses.soft_ece(logits, targets, mask=~filtered),
                model.parameters(),
            )
            optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = weights.clone()
    dist.broadcast(first, src=0)
    assert torch.equal(weights, first), "all ranks have the same weights"
    if rank == 0:
        with torch.inference_mode():
            probabilities = model.module.eval()(dataset.test.images.float() / 127.5 - 1).softmax(-1)
        right, error = (f(probabilities, dataset.test.targets) for f in (metrics.accuracy, metrics.ece))
        print(f"{ranks} ranks  accuracy {right:.1%}  ECE {error:.1%}  weights equal on all ranks")


def start(rank: int, ranks: int, place: str) -> None:
    """Join the group that this script starts."""
    dist.init_process_group("gloo", init_method=Path(place).as_uri(), rank=rank, world_size=ranks)
    train(rank, ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        train(dist.get_rank(), dist.get_world_size())
        dist.destroy_process_group()
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(start, (RANKS, f"{folder}/meeting-point"), nprocs=RANKS)
