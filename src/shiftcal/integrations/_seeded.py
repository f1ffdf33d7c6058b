"""Randomness that belongs to a sample, whichever worker prepares it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils.data import Dataset

from shiftcal._errors import wrong

_index: ContextVar[int | None] = ContextVar("index", default=None)


def current_index() -> int | None:
    """Return the index of the sample that a `SeededDataset` is transforming; None outside of one."""
    return _index.get()


class SeededDataset(Dataset[Any]):
    """A data set whose transform draws from a seed, the epoch and the sample's index alone.

    Torch's generator of the CPU is set for the duration of the transform, so that all transforms that use it, also
    torchvision's, give a sample the same result whatever the number of workers, and different samples different ones.

    Args:
        dataset: A map-style data set.
        transform: Gets what the data set returns: (image, target) as two arguments, anything else as one.
        seed: The seed.

    Example:
        >>> samples = SeededDataset([0.0, 1.0], lambda number: number + torch.rand(()))
        >>> bool(samples[1] == samples[1])
        True
    """

    def __init__(self, dataset: Any, transform: Callable[..., Any], seed: int = 0) -> None:
        if not isinstance(seed, int) or not 0 <= seed < 2**32:
            raise wrong("seed", "an integer in 0..2³²−1", seed)
        self.dataset, self.transform, self.seed = dataset, transform, seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # persistent workers see it change

    def set_epoch(self, epoch: int) -> None:
        """Let samples draw anew for an epoch; call it before the loader is iterated."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        place, state = _index.set(int(index)), torch.get_rng_state()
        # `torch.manual_seed` would also queue a call for every device that is not in use yet.
        torch.default_generator.manual_seed(_mixed(self.seed, int(self._epoch), int(index)))
        try:
            return self.transform(*sample) if isinstance(sample, tuple) else self.transform(sample)
        finally:
            torch.set_rng_state(state)
            _index.reset(place)


def _mixed(*numbers: int) -> int:
    """Make one seed of several numbers: neighbours get unrelated ones (splitmix64's finaliser)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state
