"""A plain loop with an accelerator; python accelerate_loop.py OUT under torchrun leaves the weights after each case."""

import sys
from pathlib import Path

import torch
import toy
from accelerate import Accelerator
from leaving import leave
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from shiftcal.integrations.accelerate import accelerated_backward


def train(case: str, accelerator: Accelerator, ranks: int = 1, clip: float = 0.5) -> tuple[nn.Module, list[bool]]:
    accelerator.gradient_accumulation_steps = toy.micro_batches(case)
    net = toy.net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)
    loader = DataLoader(toy.data(), toy.GLOBAL_BATCH // ranks // toy.micro_batches(case))
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    conflicts = []
    for _ in range(toy.EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(model):
                main, constraint = toy.both_losses(case, model(x), y)
                report = accelerated_backward(accelerator, main, constraint, model.parameters())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
                conflicts.append(bool(report.conflict))
    assert isinstance(model, nn.parallel.DistributedDataParallel) == (ranks > 1)
    return net, conflicts


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    accelerator = Accelerator(cpu=True)
    for case in toy.CASES:
        net, conflicts = train(case, accelerator, ranks=2)
        weights = toy.flat(net)
        found[case] = {"weights": weights, "apart": toy.apart(weights), "conflicts": conflicts}
    if dist.get_rank() == 0:
        torch.save(found, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
    leave()
