"""Random numbers keyed by (seed, image index), so that an image's corruption does not depend on its batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Draws:
    """The random numbers of a batch of images: each a function of the seed, its image's index and its place.

    `stream` separates the draws for one image: two corruptions that use the same one see the same numbers.

    Example:
        >>> two, one = Draws(0, torch.tensor([4, 7])), Draws(0, torch.tensor([7]))
        >>> bool((two.uniform(1, 3)[1] == one.uniform(1, 3)[0]).all())
        True
    """

    seed: int
    indices: Int[Tensor, " batch"]

    def bits(self, stream: int, *shape: int) -> Int32[Tensor, "batch ..."]:
        """Draw 32 random bits each, as int32."""
        key = _hash_long(_hash_long(self.indices.long() + self.seed * 0x9E3779B9) + stream * 0x85EBCA6B)
        key = _to_int32(key)[:, None]
        counter = torch.arange(math.prod(shape), dtype=torch.int32, device=key.device)
        drawn = _hash_(counter + key)
        drawn ^= key
        return _hash_(drawn).view(len(key), *shape)

    def uniform(self, stream: int, *shape: int) -> Float[Tensor, "batch ..."]:
        """Draw from (0, 1)."""
        # 24 bits are what float32 holds; the half step keeps both ends out.
        drawn = _shift(self.bits(stream, *shape), 8).float()
        return drawn.add_(0.5).mul_(2.0**-24)

    def between(self, stream: int, low: float, high: float, *shape: int) -> Float[Tensor, "batch ..."]:
        """Draw from (low, high)."""
        return self.uniform(stream, *shape).mul_(high - low).add_(low)

    def integers(self, stream: int, low: int, high: int, *shape: int) -> Int[Tensor, "batch ..."]:
        """Draw integers in low..high−1."""
        return self.between(stream, low, high, *shape).floor_().long().clamp_(max=high - 1)

    def normal(self, stream: int, *shape: int) -> Float[Tensor, "batch ..."]:
        """Draw from the standard normal distribution by the inverse of its distribution function."""
        return self.uniform(stream, *shape).mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2))


def _hash_(x: Int32[Tensor, " ..."]) -> Int32[Tensor, " ..."]:
    """Mix 32 bits in place (Wellons' "lowbias32"); int32 products wrap around as unsigned ones would."""
    x ^= _shift(x, 16)
    x *= 0x7FEB352D
    x ^= _shift(x, 15)
    x *= 0x846CA68B - 2**32
    x ^= _shift(x, 16)
    return x


def _shift(x: Int32[Tensor, " ..."], by: int) -> Int32[Tensor, " ..."]:
    """Shift right and fill with zeros; torch fills with the sign."""
    return (x >> by).bitwise_and_(_MASK >> by)


def _hash_long(x: Tensor) -> Tensor:
    """Mix the low 32 bits of int64 numbers likewise."""
    return _hash_(_to_int32(x & _MASK)).long() & _MASK


def _to_int32(x: Tensor) -> Tensor:
    return torch.where(x >= 2**31, x - 2**32, x).to(torch.int32)
