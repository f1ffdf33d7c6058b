"""A batch as a model takes it, and how stored images become one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from shiftcal import augment
from shiftcal._errors import wrong
from shiftcal.augment._inputs import Rows
from shiftcal.augment.augmix import augmix_of
from shiftcal.data.epoch import Batch
from shiftcal.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class Inputs:
    """A batch as the model takes it.

    Attributes:
        images: Preprocessed images, or features. AugMix appends its views. Of a local batch, this rank's rows alone.
        targets: The classes of the whole batch.
        filtered: Which of the whole batch were low-pass filtered.
        partners: With mixup, the classes of the partners.
        share: With mixup, the share λ of the image itself.
        local: Whether `images` are this rank's alone.
    """

    images: Float[Tensor, "images ..."]
    targets: Int[Tensor, " batch"]
    filtered: Bool[Tensor, " batch"]
    partners: Int[Tensor, " batch"] | None = None
    share: Float[Tensor, ""] | None = None
    local: bool = False

    def rows(self, start: int, end: int) -> Inputs:
        """Take the rows start..end of a batch whose images are all here."""
        if end - start == len(self.targets):
            return self
        return replace(
            self,
            images=rows_of_views(self.images, len(self.targets), slice(start, end)),
            targets=self.targets[start:end],
            filtered=self.filtered[start:end],
            partners=None if self.partners is None else self.partners[start:end],
        )


def rows_of_views(images: Tensor, count: int, rows: slice) -> Tensor:
    """Take rows of each of the views of `count` images that lie one after the other."""
    return images.view(-1, count, *images.shape[1:])[:, rows].flatten(0, 1)


Prepare = Callable[[Batch, torch.Generator, torch.Generator | None], Inputs]


@dataclass(frozen=True)
class Preparation:
    """Stored images to inputs: crop and flip, a method's views, normalise.

    Attributes:
        crop: A name in `augment.AUGMENTATIONS`, for every image.
        views: The method's own augmentation, "mixup" or "augmix", for the main batch alone.
        preprocess: The normalisation.
        truncate: Whether a low-pass filter after crop and flip takes truncated levels, see `Preprocessing.truncated`.
    """

    crop: str
    views: str | None
    preprocess: Preprocessing
    truncate: bool = False

    def __call__(self, batch: Batch, generator: torch.Generator, of_method: torch.Generator | None = None) -> Inputs:
        """Prepare a batch; without a generator for it, the method's own augmentation is left out."""
        images = augment.AUGMENTATIONS[self.crop](batch.images, generator, rows_of=batch.rows)
        if batch.augmented is not None:
            images = torch.where(batch.augmented[:, None, None, None], batch.images, images)
        made = _VIEWS[self.views if of_method is not None else None](images, batch, of_method)
        return replace(made, images=self.preprocess(made.images))

    def before_filter(self, images: Tensor, generator: torch.Generator, rows_of: Rows | None = None) -> Tensor:
        """Crop and flip stored images that are low-pass filtered after it."""
        cropped = augment.AUGMENTATIONS[self.crop](images, generator, rows_of=rows_of)
        return self.preprocess.truncated(cropped) if self.truncate else cropped


def features_as_they_are(batch: Batch, _: torch.Generator, __: torch.Generator | None = None) -> Inputs:
    """Take features for inputs: they were prepared as images."""
    return Inputs(batch.images, batch.targets, batch.filtered)


def _plain(images: Tensor, batch: Batch, _: torch.Generator | None) -> Inputs:
    return Inputs(images.float(), batch.targets, batch.filtered, local=batch.local)


def _mixup(images: Tensor, batch: Batch, generator: torch.Generator | None) -> Inputs:
    if batch.local:
        raise wrong("method", "one without mixup, where several ranks decode from disk", "mixup")
    mixed = augment.mixup(images, generator)
    return Inputs(mixed.images, batch.targets, batch.filtered, batch.targets[mixed.partner], mixed.share)


def _augmix(images: Tensor, batch: Batch, generator: torch.Generator | None) -> Inputs:
    views = augmix_of(images, generator, rows_of=batch.rows)
    return Inputs(torch.cat([images.float(), *views]), batch.targets, batch.filtered, local=batch.local)


_VIEWS: dict[str | None, Callable[..., Inputs]] = {None: _plain, "mixup": _mixup, "augmix": _augmix}
