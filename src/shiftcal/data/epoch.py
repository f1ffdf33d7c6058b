"""One epoch of training data: D_mix, of which a share is low-pass filtered, and D_orig, the rest."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import singledispatch
from itertools import islice, tee

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from shiftcal import _distributed
from shiftcal._errors import DataError, wrong
from shiftcal.augment import Perturbation
from shiftcal.augment._inputs import Rows
from shiftcal.data.split import FeatureSplit, FileSplit, MemorySplit, Split
from shiftcal.filtering import LowPassPolicy

_BATCHES_AT_ONCE = 32  # of features


@dataclass(frozen=True)
class Batch:
    """Stored images of one step, or features of them, their classes, and which of them were low-pass filtered.

    Attributes:
        images: The images; of a local batch only those that this rank computes.
        targets: The classes of the whole batch.
        filtered: Which of the whole batch are low-pass filtered.
        augmented: Which of `images` are cropped and flipped already, since that came before the filter.
        rows: Which rows of the whole batch `images` are, where they are this rank's alone.
    """

    images: UInt8[Tensor, "images 3 height width"] | Float[Tensor, "images width"]
    targets: Int[Tensor, " batch"]
    filtered: Bool[Tensor, " batch"]
    augmented: Bool[Tensor, " images"] | None = None
    rows: Rows | None = None

    @property
    def local(self) -> bool:
        """Whether `images` are this rank's alone."""
        return self.rows is not None


Fetch = Callable[[Iterable[Tensor]], Iterator[Batch]]


def seeded(seed: int, epoch: int, purpose: str, device: torch.device) -> torch.Generator:
    """Make the generator of one purpose in one epoch.

    Randomness is a function of (seed, epoch, purpose): a resumed run draws what the uninterrupted one would have
    drawn, and two methods with the same seed see the same order and the same crops.
    """
    return torch.Generator(device).manual_seed(seed_of(seed, epoch, purpose))


def seed_of(seed: int, epoch: int, purpose: str) -> int:
    """Return the seed of one purpose in one epoch."""
    return zlib.crc32(f"{seed}/{epoch}/{purpose}".encode())


class MixedEpoch:
    """One epoch of D_mix: a ρ-share of the images is filtered, the rest is D_orig (FGR paper, section 4.1).

    What is drawn is a function of seed and epoch, and of the device on which it is drawn.

    Attributes:
        split: The training samples.
        policy: What is filtered, and how.
        perturbation: What replaces a share of the images beforehand; D_orig has none of it.
        filtered: Which samples are.
        strengths: How strongly, for each sample; only those of filtered ones matter.
    """

    def __init__(
        self,
        split: Split,
        *,
        policy: LowPassPolicy,
        seed: int,
        epoch: int,
        perturbation: Perturbation | None = None,
    ) -> None:
        count = round(policy.ratio * len(split))
        if count == len(split):
            raise wrong("ratio", f"small enough to leave some of {len(split)} images unfiltered", policy.ratio)
        self.split, self.policy, self.perturbation = split, policy, perturbation
        self._seed, self._epoch, self._device = seed, epoch, split.targets.device
        generator = self.seeded("filter")
        membership = generator if policy.redraw else seeded(seed, 0, "filter once", self._device)
        self.chosen = torch.randperm(len(split), generator=membership, device=self._device)[:count]
        pick = torch.randint(len(policy.strengths), (count,), generator=generator, device=self._device)
        self.filtered = torch.zeros(len(split), dtype=torch.bool, device=self._device)
        self.filtered[self.chosen] = True
        self.strengths = torch.full((len(split),), float(policy.strengths[0]), device=self._device)
        self.strengths[self.chosen] = torch.tensor(policy.strengths, dtype=torch.float32, device=self._device)[pick]
        self._fetch = fetcher(split, self, perturbation)

    def batches(self, size: int, skip: int = 0) -> Iterator[Batch]:
        """Go through D_mix once in random order, without the first `skip` batches; the last one may be smaller."""
        return self._skipped(self._fetch, self.indices(size), skip)

    def indices(self, size: int) -> tuple[Tensor, ...]:
        """List which samples each batch has."""
        order = torch.randperm(len(self.split), generator=self.seeded("order"), device=self._device)
        return tuple(order.split(size))

    def original_batches(self, size: int, skip: int = 0) -> Iterator[Batch]:
        """Draw batches from D_orig without end, each pass in a new random order."""
        fetch = self._fetch if self.perturbation is None else fetcher(self.split, self, None)
        return self._skipped(fetch, self._original_indices(size), skip)

    def seeded(self, purpose: str, device: torch.device | None = None) -> torch.Generator:
        """Make the generator of one purpose in this epoch, by default where the targets are."""
        return seeded(self._seed, self._epoch, purpose, device or self._device)

    def _skipped(self, fetch: Fetch, indices: Iterable[Tensor], skip: int) -> Iterator[Batch]:
        if isinstance(self.split, FeatureSplit):  # every draw of a view depends on those before
            return islice(fetch(indices), skip, None)
        return fetch(islice(indices, skip, None))

    def _original_indices(self, size: int) -> Iterator[Tensor]:
        generator = self.seeded("constraint order")
        original = (~self.filtered).nonzero().squeeze(1)
        size = min(size, len(original))
        while True:
            order = original[torch.randperm(len(original), generator=generator, device=self._device)]
            yield from (index for index in order.split(size) if len(index) == size)

    def augmented(self, index: Tensor) -> Tensor | None:
        """Tell which samples are cropped and flipped already, if some may be."""
        return None if self.policy.before is None else self.filtered[index]


@singledispatch
def fetcher(split: Split, epoch: MixedEpoch, perturbation: Perturbation | None) -> Fetch:  # noqa: ARG001 (kinds use them)
    """Return what fetches the batches of an epoch from a kind of split."""
    raise TypeError(f"A split should be of a registered kind. Found a {type(split).__name__}.")


@fetcher.register
def _from_memory(split: MemorySplit, epoch: MixedEpoch, perturbation: Perturbation | None) -> Fetch:
    """Gather images on their device; perturbed and filtered ones are made at the start of the epoch, all at once."""
    images = split.images
    if perturbation is not None:
        images = perturbation(images, epoch.seeded("perturb"))
    if len(epoch.chosen):
        generator = epoch.seeded("augment before filter")
        filtered = epoch.policy.prepared(images[epoch.chosen], epoch.strengths[epoch.chosen], generator)
        images = images.index_copy(0, epoch.chosen, filtered)

    def fetch(indices: Iterable[Tensor]) -> Iterator[Batch]:
        for index in indices:
            augmented = epoch.augmented(index)
            yield Batch(images[index], split.targets[index], epoch.filtered[index], augmented=augmented)

    return fetch


@fetcher.register
def _from_files(split: FileSplit, epoch: MixedEpoch, perturbation: Perturbation | None) -> Fetch:
    """Decode images in worker processes while the model trains, each rank its rows; perturb and filter after that."""
    device = torch.device(split.device)

    def fetch(indices: Iterable[Tensor]) -> Iterator[Batch]:
        if not _distributed.is_distributed():
            for index, images in split.decoder.batches(indices, pin=device.type == "cuda"):
                yield batch(index, images, index)
            return
        ahead, asked = tee(indices)
        # More ranks than images: one image is decoded for nothing, so that all ranks take the same steps.
        mine = (
            index[_distributed.local_rows(len(index))] if _distributed.local_size(len(index)) else index[:1]
            for index in ahead
        )
        for index, (found, images) in zip(asked, split.decoder.batches(mine), strict=False):
            if len(found) < _distributed.local_size(len(index)):
                raise DataError("images", "readable, all of them, where several ranks train", "one that is not")
            start = _distributed.local_rows(len(index)).start
            yield batch(found, images, index, Rows(start, len(index)))

    def batch(found: Tensor, images: Tensor, index: Tensor, rows: Rows | None = None) -> Batch:
        images = images.to(device, non_blocking=True)
        if perturbation is not None:
            images = perturbation(images, epoch.seeded(f"perturb {int(found[0])}", device))
        chosen = epoch.filtered[found].nonzero().squeeze(1)
        if len(chosen):
            strengths, place = epoch.strengths[found[chosen]].to(device), chosen.to(device)
            where = {} if rows is None else {"rows_of": _filtered_rows(epoch.filtered[index], rows)}
            generator = epoch.seeded(f"augment before filter {int(index[0])}", device)
            images = images.index_copy(0, place, epoch.policy.prepared(images[place], strengths, generator, **where))
        augmented = epoch.augmented(found)
        return Batch(
            images,
            split.targets[index].to(device),
            epoch.filtered[index].to(device),
            None if augmented is None else augmented.to(device),
            rows,
        )

    return fetch


def _filtered_rows(filtered: Bool[Tensor, " batch"], rows: Rows) -> Rows:
    """Say which of a whole batch's filtered images those of some rows are."""
    return Rows(int(filtered[: rows.start].sum()), int(filtered.sum()))


@fetcher.register
def _from_features(split: FeatureSplit, epoch: MixedEpoch, perturbation: Perturbation | None) -> Fetch:
    """Draw one of each sample's views; many batches at once, since a classifier trains faster than it is fed."""
    if perturbation is not None:
        raise wrong("method", "one without a perturbation, where features are kept", "one with")
    generator = epoch.seeded("view")

    def drawn(views: Tensor, index: Tensor) -> Tensor:
        choice = torch.randint(len(views), (len(index),), generator=generator, device=index.device)
        return views[choice, index]

    def fetch(indices: Iterable[Tensor]) -> Iterator[Batch]:
        indices = iter(indices)
        while chunk := list(islice(indices, _BATCHES_AT_ONCE)):
            index = torch.cat(chunk)
            original, filtered = drawn(split.original, index), drawn(split.filtered, index)
            features = torch.where(epoch.filtered[index, None], filtered, original)
            sizes = [len(one) for one in chunk]
            parts = (features, split.targets[index], epoch.filtered[index])
            yield from (Batch(*part) for part in zip(*(part.split(sizes) for part in parts), strict=True))

    return fetch
