"""Number formats: bfloat16 where that is safe, and algorithms that give the same result every time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn


class Autocast(nn.Module):
    """A model whose forward pass runs in bfloat16 where that is safe; weights and logits are in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        # Casts are not cached from one forward pass to the next: a captured graph must hold them all.
        with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
            logits: Tensor = self.model(images)
        return logits.float()


def uses_bfloat16(precision: Literal["auto", "fp32", "bf16"], device: torch.device) -> bool:
    """Tell whether forward passes run in bfloat16: by default on a GPU."""
    return precision == "bf16" or (precision == "auto" and device.type == "cuda")


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Use deterministic algorithms only, if wanted; otherwise let cuDNN choose the fastest."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    benchmark = torch.backends.cudnn.benchmark
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = not wanted
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1], benchmark
