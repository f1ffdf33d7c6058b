"""What a corruption is given beside the images, and what all of them end with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from shiftcal.shifts.corruptions.random import Draws

Stored = UInt8[Tensor, "batch 3 height width"]
Images = Float[Tensor, "batch 3 height width"]  # in 0..1


@dataclass(frozen=True)
class Setting:
    """The images' random numbers, whose constants are used ("cifar", …), and where frost's photographs come from."""

    draws: Draws
    constants: str
    frost: str | None = None


def in_unit(
    function: Callable[[Tensor, Any, Setting], Tensor],
) -> Callable[[Tensor, Any, Setting], Tensor]:
    """Let a function of images in 0..1 take and return stored ones."""

    @functools.wraps(function)
    def stored(images: Tensor, amount: Any, setting: Setting) -> Tensor:
        return truncated(function(images.float().div_(255), amount, setting).mul_(255))

    return stored


def truncated(levels: Float[Tensor, " ..."]) -> UInt8[Tensor, " ..."]:
    """Cut grey levels to 8 bits, as the benchmark's generators do, without rounding.

    The margin undoes float32's error at whole levels.
    """
    return levels.add_(1e-3).clamp_(0, 255).to(torch.uint8)
