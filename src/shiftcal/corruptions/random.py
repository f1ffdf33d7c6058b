"""Random numbers keyed by (seed, image index), so that an image's corruption does not depend on its batch."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

_MASK = 0xFFFFFFFF


def uniform(
    seed: int, stream: int, indices: Int[Tensor, " batch"], shape: tuple[int, ...]
) -> Float[Tensor, "batch ..."]:
    """Draw from (0, 1), one array of `shape` per image; `stream` separates several draws for the same image."""
    key = _hash(_hash(indices.long() + seed * 0x9E3779B9) + stream * 0x85EBCA6B)
    counter = torch.arange(math.prod(shape), device=indices.device)
    bits = _hash(_hash(counter + key[:, None]) ^ key[:, None])
    # 24 bits are what float32 holds; the half step keeps both ends out.
    return (((bits >> 8).float() + 0.5) / 2**24).view(len(indices), *shape)


def normal(
    seed: int, stream: int, indices: Int[Tensor, " batch"], shape: tuple[int, ...]
) -> Float[Tensor, "batch ..."]:
    """Draw from the standard normal distribution by the inverse of its distribution function."""
    return math.sqrt(2) * torch.erfinv(2 * uniform(seed, stream, indices, shape) - 1)


def _hash(x: Tensor) -> Tensor:
    """Mix 32 bits (Wellons' "lowbias32"), in int64 because torch has no unsigned multiply."""
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)
