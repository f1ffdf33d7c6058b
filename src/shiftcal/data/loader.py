"""The device-resident loader: all images stay on the device; batches are gathered, filtered and augmented there."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from shiftcal._checks import wrong
from shiftcal.data.dataset import Split
from shiftcal.filtering import LowPassPolicy


@dataclass(frozen=True)
class Batch:
    """Stored images of one step, or features of them, their classes, and which of them were low-pass filtered.

    A local batch has only the images that this one of several processes computes, and the classes of all. `strength` is
    there where the filter is yet to be applied, after crop and flip.
    """

    images: UInt8[Tensor, "images 3 height width"] | Float[Tensor, "images width"]
    targets: Int[Tensor, " batch"]
    filtered: Bool[Tensor, " batch"]
    local: bool = False
    strength: Float[Tensor, " images"] | None = None


def seeded(seed: int, epoch: int, purpose: str, device: torch.device) -> torch.Generator:
    """Make the generator of one purpose in one epoch.

    Randomness is a function of (seed, epoch, purpose): a resumed run draws what the uninterrupted one would have
    drawn, and two methods with the same seed see the same order and the same crops.
    """
    return torch.Generator(device).manual_seed(seed_of(seed, epoch, purpose))


def seed_of(seed: int, epoch: int, purpose: str) -> int:
    """Return the seed of one purpose in one epoch."""
    return zlib.crc32(f"{seed}/{epoch}/{purpose}".encode())


@runtime_checkable
class Samples(Protocol):
    """What an epoch is drawn from: things with a class each."""

    @property
    def targets(self) -> Tensor:
        """Their classes."""

    def __len__(self) -> int: ...


class MixedEpoch:
    """One epoch of D_mix: a fresh ρ-share of the images is filtered, the rest is D_orig (FGR paper, section 4.1).

    What is drawn is a function of seed and epoch, and of the device on which it is drawn.
    """

    def __init__(self, split: Samples, *, policy: LowPassPolicy, seed: int, epoch: int) -> None:
        count = round(policy.ratio * len(split))
        if count == len(split):
            raise wrong("ratio", f"small enough to leave some of {len(split)} images unfiltered", policy.ratio)
        self.split, self.policy, self._device = split, policy, split.targets.device
        self._seed, self._epoch = seed, epoch
        generator = self._seeded("filter")
        whose = generator if policy.redraw else seeded(seed, 0, "filter once", self._device)
        chosen = torch.randperm(len(split), generator=whose, device=self._device)[:count]
        pick = torch.randint(len(policy.strengths), (count,), generator=generator, device=self._device)
        self.filtered = torch.zeros(len(split), dtype=torch.bool, device=self._device)
        self.filtered[chosen] = True
        self.strengths = torch.full((len(split),), float(policy.strengths[0]), device=self._device)
        self.strengths[chosen] = torch.tensor(policy.strengths, dtype=torch.float32, device=self._device)[pick]
        self._filter(chosen)

    def batches(self, size: int, skip: int = 0) -> Iterator[Batch]:
        """Go through D_mix once in random order, but for the first batches; the last one may be smaller."""
        return self._gather(self.indices(size)[skip:])

    def indices(self, size: int) -> tuple[Tensor, ...]:
        """List which images each batch has."""
        order = torch.randperm(len(self.split), generator=self._seeded("order"), device=self._device)
        return tuple(order.split(size))

    def original_batches(self, size: int, skip: int = 0) -> Iterator[Batch]:
        """Draw batches from D_orig without end, each pass in a new random order."""
        return self._gather(islice(self._original_indices(size), skip, None))

    def _original_indices(self, size: int) -> Iterator[Tensor]:
        generator = self._seeded("constraint order")
        original = (~self.filtered).nonzero().squeeze(1)
        size = min(size, len(original))
        while True:
            order = original[torch.randperm(len(original), generator=generator, device=self._device)]
            yield from (index for index in order.split(size) if len(index) == size)

    def _seeded(self, purpose: str) -> torch.Generator:
        return seeded(self._seed, self._epoch, purpose, self._device)

    def _filter(self, chosen: Tensor) -> None:
        """Prepare the filtered images of the epoch."""

    def _gather(self, indices: Iterable[Tensor]) -> Iterator[Batch]:
        """Fetch the images of each batch."""
        raise NotImplementedError


class ResidentEpoch(MixedEpoch):
    """One epoch of D_mix whose images are all on the device; the filtered ones are made at its start."""

    split: Split

    def _filter(self, chosen: Tensor) -> None:
        self.images = self.split.images
        if len(chosen) and not self.policy.after_augment:
            self.images = self.split.images.clone()
            self.images[chosen] = self.policy(self.split.images[chosen], self.strengths[chosen])

    def _gather(self, indices: Iterable[Tensor]) -> Iterator[Batch]:
        later = self.policy.after_augment
        for index in indices:
            strength = self.strengths[index] if later else None
            yield Batch(self.images[index], self.split.targets[index], self.filtered[index], strength=strength)
