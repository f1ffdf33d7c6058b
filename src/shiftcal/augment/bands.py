"""Frequency bands of other images: what an image keeps of its own spectrum, and what it takes from another's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.augment._inputs import check_images
from shiftcal.filtering import dct_low_pass

QUALITIES = tuple(range(5, 30))


def swap_high_band(
    images: UInt8[Tensor, "batch 3 height width"],
    generator: torch.Generator | None = None,
    *,
    qualities: Sequence[int] = QUALITIES,
) -> UInt8[Tensor, "batch 3 height width"]:
    """Give each image another one's high band, low_λ(x_i) + x_j − low_λ(x_j), with FGR's low-pass filter.

    The class stays that of the image whose low band is kept. Each image draws its quality λ; partners are a random
    permutation of the batch. HybridAugment++ (Yucel et al., ICCV 2023) trains on hybrids of this kind, with a Gaussian
    in place of a DCT.

    Args:
        images: Images, not yet normalised.
        generator: Where randomness comes from; torch's own by default.
        qualities: What λ is drawn from, in 1..100; a lower one leaves an image less of its own.

    Example:
        >>> images = torch.full((8, 3, 32, 32), 9, dtype=torch.uint8)
        >>> swap_high_band(images, torch.Generator().manual_seed(0)).unique()  # without a high band nothing changes
        tensor([9], dtype=torch.uint8)
    """
    check_images(images)
    if not qualities or not all(1 <= quality <= 100 for quality in qualities):
        raise wrong("qualities", "in 1..100, at least one", list(qualities))
    n, device = len(images), images.device
    pick = torch.randint(len(qualities), (n,), generator=generator, device=device)
    partner = torch.randperm(n, generator=generator, device=device)
    quality = torch.tensor(list(qualities), dtype=torch.int64).to(device, non_blocking=True)[pick]
    own = dct_low_pass(images, quality).short()
    high = images[partner].short() - dct_low_pass(images[partner], quality).short()
    return (own + high).clamp(0, 255).to(torch.uint8)


def swap_amplitude(
    images: UInt8[Tensor, "batch 3 height width"], generator: torch.Generator | None = None
) -> UInt8[Tensor, "batch 3 height width"]:
    """Give each image another one's amplitude spectrum and keep its phase (APR-P; Chen et al., ICCV 2021).

    The class stays that of the phase. Partners are a random permutation of the batch; real images stay real, since
    both spectra are symmetric.

    Example:
        >>> images = torch.randint(0, 256, (1, 3, 8, 8), dtype=torch.uint8)
        >>> torch.equal(swap_amplitude(images), images)  # alone in its batch an image keeps its own
        True
    """
    check_images(images)
    partner = torch.randperm(len(images), generator=generator, device=images.device)
    with torch.autocast(images.device.type, enabled=False):
        spectrum = torch.fft.rfft2(images.float())
        swapped = torch.polar(spectrum[partner].abs(), spectrum.angle())
        mixed: Tensor = torch.fft.irfft2(swapped, s=images.shape[-2:])
    return mixed.round().clamp(0, 255).to(torch.uint8)
