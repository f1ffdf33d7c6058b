"""The streaming loader: images are decoded from disk by worker processes while the model trains.

It gives the batches of `loader.MixedEpoch`, drawn in the same way; the low-pass filter is applied to each batch's share
of the filtered images after decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from shiftcal.data.dataset import FileSplit
from shiftcal.data.loader import Batch, MixedEpoch
from shiftcal.filtering import dct_low_pass


class StreamedEpoch(MixedEpoch):
    """One epoch of D_mix whose images lie on disk. What is drawn is drawn on the host, where files are named."""

    split: FileSplit

    def _gather(self, indices: Iterable[Tensor]) -> Iterator[Batch]:
        device = torch.device(self.split.device)
        for index, images in self.split.decoder.batches(indices, pin=device.type == "cuda"):
            filtered = self.filtered[index]
            images = images.to(device, non_blocking=True)
            if filtered.any():
                chosen = filtered.nonzero().squeeze(1)
                qualities = self.qualities[index[chosen]].to(device)
                images = images.index_copy(0, chosen.to(device), dct_low_pass(images[chosen.to(device)], qualities))
            yield Batch(images, self.split.targets[index].to(device), filtered.to(device))
