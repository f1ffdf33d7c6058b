"""A small classification that all loops train on, and what is compared of their results."""

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from shiftcal import gather, losses

SAMPLES, GLOBAL_BATCH, EPOCHS, CLASSES = 48, 24, 3, 4
CASES = ("means", "gathered", "accumulated")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.randint(0, CLASSES, (SAMPLES,), generator=generator))


def both_losses(case: str, logits: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means over samples as they are, or Soft-ECE, which is none, of the whole batch; in conflict most of the time."""
    if case == "gathered":
        everyones, targets = gather(logits, y)
        return losses.dual_focal(logits, y), -losses.soft_ece(everyones, targets)
    return losses.dual_focal(logits, y), -losses.brier(logits, y)


def micro_batches(case: str) -> int:
    return 2 if case == "accumulated" else 1


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def apart(weights: torch.Tensor) -> float:
    """Tell how far the ranks' weights are apart."""
    everyone = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, weights)
    return max(float((other - weights).abs().max()) for other in everyone)
