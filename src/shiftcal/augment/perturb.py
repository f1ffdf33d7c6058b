"""Shares of the images, each replaced by one perturbed view of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import UInt8
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.augment.augmix import augmix
from shiftcal.augment.bands import QUALITIES, swap_amplitude, swap_high_band

Kind = Literal["augmix", "amplitude", "high_band"]
KINDS: tuple[Kind, ...] = get_args(Kind)
AT_ONCE = 2048  # images; on a GPU a few cost as much as many


@dataclass(frozen=True)
class Perturbation:
    """Replace shares of images by one perturbed view each; which images get which view is drawn anew.

    Attributes:
        augmix: The share that becomes one AugMix view.
        amplitude: The share that gets another image's amplitude spectrum, `swap_amplitude`.
        high_band: The share that gets another image's high band, `swap_high_band`.
        severity: That of AugMix.
        qualities: Those of `swap_high_band`.

    Example:
        >>> images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> perturbed = Perturbation(augmix=0.5)(images, torch.Generator().manual_seed(0))
        >>> int((perturbed != images).flatten(1).any(1).sum())
        4
    """

    augmix: float = 0.0
    amplitude: float = 0.0
    high_band: float = 0.0
    severity: float = 3.0
    qualities: tuple[int, ...] = QUALITIES

    def __post_init__(self) -> None:
        for name in KINDS:
            if not 0 <= getattr(self, name) <= 1:
                raise wrong(name, "in [0, 1]", getattr(self, name))
        if self.share > 1 + 1e-9:
            raise wrong("shares", "of a sum up to 1", self.share)

    @property
    def share(self) -> float:
        """The share of the images that are perturbed."""
        return self.augmix + self.amplitude + self.high_band

    def __call__(
        self, images: UInt8[Tensor, "n 3 height width"], generator: torch.Generator
    ) -> UInt8[Tensor, "n 3 height width"]:
        """Return images of which shares are perturbed; round(share · n) of them in all."""
        order = torch.randperm(len(images), generator=generator, device=images.device)
        result, start, upto = images.clone(), 0, 0.0
        for kind in KINDS:
            upto += getattr(self, kind)
            end = round(upto * len(images))
            for some in order[start:end].split(AT_ONCE) if end > start else ():
                result[some] = self._perturbed(kind, images[some], generator)
            start = end
        return result

    def _perturbed(self, kind: Kind, images: Tensor, generator: torch.Generator) -> Tensor:
        if kind == "high_band":
            return swap_high_band(images, generator, qualities=self.qualities)
        if kind == "amplitude":
            return swap_amplitude(images, generator)
        view = augmix(images, generator, views=1, severity=self.severity)[0]
        return view.round().clamp(0, 255).to(torch.uint8)
