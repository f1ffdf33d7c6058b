"""A user's loop on several ranks, as torchrun starts it; with no rank beside it, the same loop on the whole batch.

python user_loops.py OUT: leaves the weights after 12 steps of each case.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from leaving import leave
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shiftcal import ConstraintMomentum, GradientPair, gather, losses, rectified_backward

STEPS, BATCH = 12, 24
CASES = ("plain", "ddp", "ddp unused", "gathered", "ddp gathered", "micro-batches", "momentum", "classifier")


class Net(nn.Module):
    """Two layers, and a third that only some rows go through."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.extra, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.double()

    def forward(self, x: torch.Tensor, extra: bool = False) -> torch.Tensor:
        h = self.hidden(x).tanh()
        return self.head(self.extra(h) if extra else h)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (BATCH,), generator=generator)


def two_losses(case: str, logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means over samples, or with the whole batch's logits a constraint that is none."""
    if "gathered" in case:
        logits, y = gather(logits, y)
        return losses.dual_focal(logits, y), -losses.soft_ece(logits, y)
    return losses.dual_focal(logits, y), -losses.brier(logits, y)  # in conflict most of the time


def train(case: str, rank: int, ranks: int) -> tuple[nn.Module, list[bool]]:
    net = Net()
    wrapped = (
        DistributedDataParallel(net, find_unused_parameters=case == "ddp unused")
        if "ddp" in case and ranks > 1
        else net
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)
    state = ConstraintMomentum(0.5) if case == "momentum" else None
    conflicts = []
    for step in range(STEPS):
        x, y = (part.chunk(ranks)[rank] for part in batch(step))
        optimizer.zero_grad()
        constrained = net.head.parameters() if case == "classifier" else None
        if case == "micro-batches":
            pair = GradientPair(net.parameters())
            for a, b in zip(x.chunk(2), y.chunk(2), strict=True):
                main, constraint = two_losses(case, wrapped(a), b)
                pair.add(main / 2, constraint / 2)
            report = pair.backward()
        else:
            # On one rank of two the third layer has a part in the loss, on the other it has none.
            extra = case == "ddp unused" and rank == 0
            main, constraint = two_losses(case, wrapped(x, extra), y)
            report = rectified_backward(main, constraint, wrapped.parameters(), state=state, constrained=constrained)
        conflicts.append(bool(report.conflict))
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
    return net, conflicts


def alone_in_its_group(rank: int) -> bool:
    """With a group of one, a rank averages over nothing."""
    groups = [dist.new_group([number]) for number in range(dist.get_world_size())]
    w = torch.full((2,), float(rank), requires_grad=True)
    rectified_backward((w * rank).sum(), w.sum(), [w], process_group=groups[rank])
    return w.grad.tolist() == [rank, rank]


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = {}
    for case in CASES:
        net, conflicts = train(case, rank, ranks)
        flat = torch.cat([p.detach().flatten() for p in net.parameters()])
        everyone = [torch.empty_like(flat) for _ in range(ranks)]
        dist.all_gather(everyone, flat)
        apart = max(float((other - flat).abs().max()) for other in everyone)
        found[case] = {"weights": flat, "apart": apart, "conflicts": conflicts}
    found["alone"] = alone_in_its_group(rank)
    if rank == 0:
        torch.save(found, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
    leave()
