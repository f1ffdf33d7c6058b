"""Optimisers by name, each with a flag that freezes it, and the last part of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shiftcal.training.settings import TrainSettings


def make_optimizer(config: TrainSettings, model: nn.Module) -> torch.optim.Optimizer:
    """Make the optimiser of a model's trainable parameters.

    It is fused: such an optimiser skips its update, momentum included, while its `found_inf` is raised. On a GPU the
    learning rate is a tensor, so that the step can be captured.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    device = parameters[0].device
    rate = torch.tensor(config.learning_rate, device=device) if device.type == "cuda" else config.learning_rate
    common: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay, "fused": True}
    if config.optimizer != "sgd" and device.type == "cuda":
        common["capturable"] = True
    optimizer: Any
    if config.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, momentum=config.momentum, nesterov=config.nesterov, **common)
    elif config.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, **common)
    else:  # transformers are trained without decay of biases and scales, the parameters of one dimension
        groups: list[dict[str, Any]] = [
            {"params": [p for p in parameters if p.ndim > 1]},
            {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]], **common)
    optimizer.found_inf = torch.zeros((), device=device)
    made: torch.optim.Optimizer = optimizer
    return made


def descend(
    optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], scale: float = 1, clip_norm: float | None = None
) -> Float[Tensor, ""]:
    """Take the optimiser's step along `.grad`, scaled and clipped; returns the norm before clipping."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if scale != 1:
        torch._foreach_mul_(gradients, scale)
    norm = torch.nn.utils.get_total_norm(gradients)
    if clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
    optimizer.found_inf.logical_or_(~norm.isfinite())  # type: ignore[attr-defined]
    optimizer.step()
    return norm
