"""Optimisers against torch's own loops, and the flag that freezes them."""

import pytest
import torch

from shiftcal.training.optimizer import make_optimizer
from shiftcal.training.settings import TrainSettings


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)).double()


def step(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    x = torch.arange(24.0, dtype=torch.float64).view(8, 3) / 10
    network(x).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_updates_are_torchs_and_freeze(name: str) -> None:
    config = TrainSettings(optimizer=name, learning_rate=0.01, momentum=0.9, weight_decay=0.1)
    ours, theirs = model(), model()
    decayed = [p for p in theirs.parameters() if p.ndim > 1]
    rest = [p for p in theirs.parameters() if p.ndim == 1]
    reference = {
        "sgd": lambda: torch.optim.SGD(theirs.parameters(), 0.01, 0.9, weight_decay=0.1),
        "adam": lambda: torch.optim.Adam(theirs.parameters(), 0.01, weight_decay=0.1),
        "adamw": lambda: torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], 0.01
        ),
    }[name]()
    optimizer = make_optimizer(config, ours)
    for _ in range(3):
        step(ours, optimizer)
        step(theirs, reference)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    optimizer.found_inf.fill_(1)
    before = [p.clone() for p in ours.parameters()]
    step(ours, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), before, strict=True))


def test_frozen_parameters_are_left_out() -> None:
    network = model()
    network[0].requires_grad_(False)
    groups = make_optimizer(TrainSettings(optimizer="adamw"), network).param_groups
    assert sum(len(group["params"]) for group in groups) == 4
