"""The filter, the corruptions and AugMix as torchvision transforms, and randomness that belongs to a sample.

Like torchvision's own, the transforms draw from torch's global generator, which a DataLoader seeds differently in each
worker. What a sample gets then depends on the number of workers; in a `SeededDataset` it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import torch
from PIL import Image
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from shiftcal._errors import wrong
from shiftcal.augment import augmix
from shiftcal.filtering import Subsampling, dct_low_pass
from shiftcal.integrations._extras import missing
from shiftcal.integrations._seeded import SeededDataset, current_index
from shiftcal.shifts.corruptions import corrupt

try:
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import Transform
    from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image
except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision for another torch
    raise missing("torchvision", error) from error

__all__ = ["AugMixView", "Corrupt", "RandomLowPass", "SeededDataset"]


class _OnImages(Transform):
    """A transform of the images of a sample: PIL, `tv_tensors.Image` or, where there are none, the first tensor.

    A tensor is one image [3, H, W] or a batch [N, 3, H, W]. Boxes, masks and targets are left as they are.
    """

    def forward(self, *inputs: Any) -> Any:
        """Transform a sample of any structure."""
        return self._changed(inputs, self._images)

    def _changed(self, inputs: tuple[Any, ...], change: Callable[[Tensor], Tensor]) -> Any:
        leaves, spec = tree_flatten(inputs if len(inputs) > 1 else inputs[0])
        for place in _places_of_images(leaves):
            leaves[place] = _change_one(leaves[place], change)
        return tree_unflatten(leaves, spec)

    def _images(self, images: Tensor) -> Tensor:
        raise NotImplementedError


class RandomLowPass(_OnImages):
    """Low-pass filter a random share of the images with `dct_low_pass` (FGR paper, section 4.1).

    Args:
        share: Probability that an image is filtered.
        qualities: What each filtered image draws its quality from.
        subsampling: That of the chroma, "4:4:4" or "4:2:0".
        return_mask: Append to the sample a boolean tensor, whether the image was filtered, or one for each of a batch:
            (image, target) becomes (image, target, filtered). A mapping gets the key `filtered` instead.

    Example:
        >>> image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)
        >>> image, target, filtered = RandomLowPass(share=1.0, return_mask=True)(image, 7)
        >>> target, filtered
        (7, tensor(True))
    """

    def __init__(
        self,
        share: float = 0.05,
        qualities: Sequence[int] = (15, 18, 25),
        subsampling: Subsampling = "4:4:4",
        return_mask: bool = False,
    ) -> None:
        super().__init__()
        _check_share(share)
        if not qualities or not all(isinstance(q, int) and 1 <= q <= 100 for q in qualities):
            raise wrong("qualities", "integers in 1..100", qualities)
        if subsampling not in ("4:4:4", "4:2:0"):
            raise wrong("subsampling", "'4:4:4' or '4:2:0'", repr(subsampling))
        self.share, self.qualities, self.subsampling = share, tuple(qualities), subsampling
        self.return_mask = return_mask

    def forward(self, *inputs: Any) -> Any:
        """Transform a sample of any structure."""
        if not self.return_mask:
            return super().forward(*inputs)
        leaves = tree_flatten(inputs)[0]
        places = _places_of_images(leaves)
        if len(places) != 1:
            raise wrong("inputs", "a sample with one image, where `return_mask` is set", f"{len(places)} images")
        masks: list[Tensor] = []
        changed = self._changed(inputs, lambda images: self._filtered(images, masks))
        mask = masks[0] if _is_batch(leaves[places[0]]) else masks[0][0]
        if isinstance(changed, dict):
            return {**changed, "filtered": mask}
        return (*changed, mask) if isinstance(changed, tuple | list) else (changed, mask)

    def _images(self, images: Tensor) -> Tensor:
        return self._filtered(images, [])

    def _filtered(self, images: Tensor, masks: list[Tensor]) -> Tensor:
        # Drawn on the host, also for a batch on another device, which need not be waited for.
        chosen = torch.rand(len(images)) < self.share
        places = chosen.nonzero().squeeze(1)
        quality = torch.tensor(self.qualities)[torch.randint(len(self.qualities), (len(images),))][places]
        masks.append(chosen.to(images.device))
        if not len(places):
            return images
        filtered = dct_low_pass(images[places], quality, subsampling=self.subsampling)
        return images.clone().index_copy_(0, places.to(images.device), filtered)


class Corrupt(_OnImages):
    """Corrupt the images as the common-corruptions benchmark does; see `shiftcal.corrupt`.

    Args:
        name: One of `CORRUPTIONS` or `EXTRA_CORRUPTIONS`.
        severity: 1 (mild) to 5 (strong).
        constants: Whose severities: "cifar", "tiny-imagenet" or "imagenet".
        seed: By default randomness comes from torch's generator, anew at every call. With a seed it depends on the
            seed and an image's index alone, as in `shiftcal.corrupt`: the index is that of the sample in a
            `SeededDataset`, elsewhere the image's place in its batch.
        frost: Where photographs of frost come from, see `shiftcal.corrupt`.
    """

    def __init__(
        self,
        name: str,
        severity: SupportsIndex = 3,
        constants: str = "cifar",
        seed: int | None = None,
        frost: str | None = None,
    ) -> None:
        super().__init__()
        self.name, self.severity, self.constants, self.seed, self.frost = name, severity, constants, seed, frost
        corrupt(torch.zeros(0, 3, 32, 32, dtype=torch.uint8), name, severity, constants=constants, seed=seed or 0)

    def _images(self, images: Tensor) -> Tensor:
        seed, indices, own = self.seed, None, current_index()
        if seed is None:
            seed = int(torch.randint(2**32, ()))
        elif own is not None:
            indices = own + torch.arange(len(images))
        return corrupt(
            images,
            self.name,
            self.severity,
            seed=seed,
            constants=self.constants,
            indices=indices,
            frost=self.frost,
        )


class AugMixView(_OnImages):
    """Replace a random share of the images by one AugMix view each, rounded to grey levels; see `augment.augmix`.

    Args:
        share: Probability that an image is replaced.
        severity: Upper end of the operations' severity, on a scale to 10.
        width: Chains per view.
        depth: Most operations in a chain.
    """

    def __init__(self, share: float = 1.0, severity: float = 3.0, width: int = 3, depth: int = 3) -> None:
        super().__init__()
        _check_share(share)
        self.share, self.severity, self.width, self.depth = share, severity, width, depth
        self._view(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.Generator().manual_seed(0))

    def _images(self, images: Tensor) -> Tensor:
        places = (torch.rand(len(images)) < self.share).nonzero().squeeze(1)
        if not len(places):
            return images
        return images.clone().index_copy_(0, places.to(images.device), self._view(images[places]))

    def _view(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        view = augmix(images, generator, views=1, width=self.width, depth=self.depth, severity=self.severity)[0]
        return view.round().clamp(0, 255).to(torch.uint8)


def _check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise wrong("share", "in [0, 1]", share)


def _places_of_images(leaves: Sequence[Any]) -> list[int]:
    """Find the images of a sample, as torchvision does."""
    explicit = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Image.Image | tv_tensors.Image)]
    pure = [k for k, leaf in enumerate(leaves) if type(leaf) is Tensor]
    if not explicit and not pure:
        kinds = ", ".join(type(leaf).__name__ for leaf in leaves)
        raise wrong("inputs", "a sample with an image: PIL's or a tensor [3, H, W]", f"one of {kinds or 'nothing'}")
    return explicit or pure[:1]


def _is_batch(image: Any) -> bool:
    return isinstance(image, Tensor) and image.ndim == 4


def _change_one(image: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change an image or a batch of any kind, and return the same kind."""
    if isinstance(image, Image.Image):
        if image.mode != "RGB":
            raise wrong("image", "RGB: image.convert('RGB')", f"a PIL image of mode {image.mode}")
        return to_pil_image(change(pil_to_tensor(image)[None])[0])
    if image.dtype != torch.uint8:
        expected = "stored, uint8: put this transform before v2.ToDtype, ToTensor and Normalize"
        raise wrong("image", expected, f"{image.dtype} {list(image.shape)}")
    if image.ndim not in (3, 4) or image.shape[-3] != 3:
        raise wrong("image", "of shape [3, H, W] or [N, 3, H, W]", list(image.shape))
    plain = image.as_subclass(Tensor)
    changed = change(plain) if image.ndim == 4 else change(plain[None])[0]
    return tv_tensors.wrap(changed, like=image) if isinstance(image, tv_tensors.Image) else changed
