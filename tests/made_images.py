"""Images to test and to measure with, made by formula."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image


def make_natural_images(count: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    fy, fx = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)
    # CIFAR-10's amplitudes fall as f^-1.45 up to half the highest frequency, then faster.
    amplitude = torch.hypot(fy, fx).clamp_min(1 / max(height, width)) ** -1.5
    noise = torch.randn(count, 4, height, width, generator=generator)
    planes = torch.fft.irfft2(torch.fft.rfft2(noise) * amplitude, s=(height, width))
    planes = planes / planes.std((2, 3), keepdim=True)
    images = 120 + 45 * planes[:, :1] + 15 * planes[:, 1:]
    return images.clamp(0, 255).to(torch.uint8)


def write_textures(folder: Path, count: int = 6, size: tuple[int, int] = (400, 300)) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / f"{k}.png")
