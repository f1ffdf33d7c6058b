"""A share of the images, each replaced by one perturbed view of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import UInt8
from torch import Tensor

from shiftcal._errors import unknown, wrong
from shiftcal.augment.augmix import augmix
from shiftcal.augment.bands import QUALITIES, swap_amplitude, swap_high_band

Kind = Literal["augmix", "high_band", "amplitude"]
AT_ONCE = 2048  # images; on a GPU a few cost as much as many


@dataclass(frozen=True)
class Perturbation:
    """Replace a share of images by one perturbed view each; with several kinds, each image draws one of them.

    Attributes:
        share: The share of the images, in [0, 1].
        kinds: "augmix": one AugMix view; "high_band": `swap_high_band`; "amplitude": `swap_amplitude`.
        severity: That of AugMix.
        qualities: Those of `swap_high_band`.

    Example:
        >>> images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> perturbed = Perturbation(0.5)(images, torch.Generator().manual_seed(0))
        >>> int((perturbed != images).flatten(1).any(1).sum())
        4
    """

    share: float
    kinds: tuple[Kind, ...] = ("augmix",)
    severity: float = 3.0
    qualities: tuple[int, ...] = QUALITIES

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise wrong("share", "in [0, 1]", self.share)
        for kind in self.kinds or ("",):
            if kind not in get_args(Kind):
                raise unknown("kinds", kind, get_args(Kind))

    def __call__(
        self, images: UInt8[Tensor, "n 3 height width"], generator: torch.Generator
    ) -> UInt8[Tensor, "n 3 height width"]:
        """Return images of which a share, drawn anew, is perturbed; round(share · n) of them."""
        order = torch.randperm(len(images), generator=generator, device=images.device)
        chosen = order[: round(self.share * len(images))]
        result = images.clone()
        for part, kind in zip(chosen.tensor_split(len(self.kinds)), self.kinds, strict=True):
            for some in part.split(AT_ONCE) if len(part) else ():
                result[some] = self._perturbed(kind, images[some], generator)
        return result

    def _perturbed(self, kind: Kind, images: Tensor, generator: torch.Generator) -> Tensor:
        if kind == "high_band":
            return swap_high_band(images, generator, qualities=self.qualities)
        if kind == "amplitude":
            return swap_amplitude(images, generator)
        view = augmix(images, generator, views=1, severity=self.severity)[0]
        return view.round().clamp(0, 255).to(torch.uint8)
