"""The device-resident loader: all images stay on the device; batches are gathered, filtered and augmented there."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from shiftcal._checks import wrong
from shiftcal.data.dataset import Split
from shiftcal.filtering import dct_low_pass


@dataclass(frozen=True)
class Batch:
    """Stored images of one step, their classes, and which of them were low-pass filtered."""

    images: UInt8[Tensor, "batch 3 height width"]
    targets: Int[Tensor, " batch"]
    filtered: Bool[Tensor, " batch"]


def seeded(seed: int, epoch: int, purpose: str, device: torch.device) -> torch.Generator:
    """Make the generator of one purpose in one epoch.

    Randomness is a function of (seed, epoch, purpose): a resumed run draws what the uninterrupted one would have
    drawn, and two methods with the same seed see the same order and the same crops.
    """
    return torch.Generator(device).manual_seed(zlib.crc32(f"{seed}/{epoch}/{purpose}".encode()))


class MixedEpoch:
    """One epoch of D_mix: a fresh ρ-share of the images is filtered, the rest is D_orig (FGR paper, section 4.1)."""

    def __init__(self, split: Split, *, ratio: float, qualities: tuple[int, ...], seed: int, epoch: int) -> None:
        if not 0 <= ratio < 1:
            raise wrong("ratio", "in [0, 1)", ratio)
        if round(ratio * len(split)) == len(split):
            raise wrong("ratio", f"small enough to leave some of {len(split)} images unfiltered", ratio)
        device = split.images.device
        self._split, self._seed, self._epoch = split, seed, epoch
        generator = seeded(seed, epoch, "filter", device)
        chosen = torch.randperm(len(split), generator=generator, device=device)[: round(ratio * len(split))]
        self.filtered = torch.zeros(len(split), dtype=torch.bool, device=device)
        self.filtered[chosen] = True
        self.images = split.images
        if len(chosen):
            pick = torch.randint(len(qualities), (len(chosen),), generator=generator, device=device)
            self.images = split.images.clone()
            self.images[chosen] = dct_low_pass(split.images[chosen], torch.tensor(qualities, device=device)[pick])

    def batches(self, size: int) -> Iterator[Batch]:
        """Go through D_mix once in random order; the last batch may be smaller."""
        generator = seeded(self._seed, self._epoch, "order", self.images.device)
        order = torch.randperm(len(self._split), generator=generator, device=self.images.device)
        for index in order.split(size):
            yield self._take(index)

    def original_batches(self, size: int) -> Iterator[Batch]:
        """Draw batches from D_orig without end, each pass in a new random order."""
        generator = seeded(self._seed, self._epoch, "constraint order", self.images.device)
        original = (~self.filtered).nonzero().squeeze(1)
        size = min(size, len(original))
        while True:
            order = original[torch.randperm(len(original), generator=generator, device=original.device)]
            for index in order.split(size):
                if len(index) == size:
                    yield self._take(index)

    def _take(self, index: Tensor) -> Batch:
        return Batch(self.images[index], self._split.targets[index], self.filtered[index])
