"""The streaming loader: images are decoded from disk by worker processes while the model trains.

It gives the batches of `loader.MixedEpoch`, drawn in the same way; the low-pass filter is applied to each batch's share
of the filtered images after decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import tee

import torch
from torch import Tensor

from shiftcal import _ranks
from shiftcal._checks import wrong
from shiftcal.data.dataset import FileSplit
from shiftcal.data.loader import Batch, MixedEpoch


class StreamedEpoch(MixedEpoch):
    """One epoch of D_mix whose images lie on disk. What is drawn is drawn on the host, where files are named."""

    split: FileSplit

    def _gather(self, indices: Iterable[Tensor]) -> Iterator[Batch]:
        device = torch.device(self.split.device)
        if _ranks.several():
            yield from self._gather_mine(indices, device)
            return
        for index, images in self.split.decoder.batches(indices, pin=device.type == "cuda"):
            yield self._batch(index, images, index, device)

    def _gather_mine(self, indices: Iterable[Tensor], device: torch.device) -> Iterator[Batch]:
        """Decode of each batch the images that this process computes; their classes are those of all."""
        ahead, asked = tee(indices)
        # More processes than images: one of them is decoded for nothing, so that all take the same steps.
        mine = (index[_ranks.rows(len(index))] if _ranks.share(len(index)) else index[:1] for index in ahead)
        for index, (found, images) in zip(asked, self.split.decoder.batches(mine), strict=False):
            if len(found) < _ranks.share(len(index)):
                raise wrong("images", "readable, all of them, where several processes train", "one that is not")
            yield self._batch(found, images, index, device, local=True)

    def _batch(
        self, found: Tensor, images: Tensor, index: Tensor, device: torch.device, *, local: bool = False
    ) -> Batch:
        filtered = self.filtered[found]
        images = images.to(device, non_blocking=True)
        later = self.policy.after_augment
        if filtered.any() and not later:
            chosen = filtered.nonzero().squeeze(1)
            strengths = self.strengths[found[chosen]].to(device)
            images = images.index_copy(0, chosen.to(device), self.policy(images[chosen.to(device)], strengths))
        strength = self.strengths[found].to(device) if later else None
        return Batch(images, self.split.targets[index].to(device), self.filtered[index].to(device), local, strength)
