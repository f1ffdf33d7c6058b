"""Images per second of the low-pass filter against Pillow and kornia, on one core, interleaved in one run.

python benchmarks/low_pass.py
"""

import io
import statistics
import time
from collections.abc import Callable

import kornia
import numpy as np
import torch
from PIL import Image

from shiftcal import data, dct_low_pass

COUNT, QUALITY, ROUNDS = 1000, 15, 21


def ours(images: torch.Tensor) -> object:
    return dct_low_pass(images, QUALITY)


def pillow(images: torch.Tensor) -> object:
    decoded = []
    for image in images.permute(0, 2, 3, 1).numpy():
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "JPEG", quality=QUALITY, subsampling=0)
        decoded.append(np.asarray(Image.open(buffer)))
    return np.stack(decoded)


def with_kornia(images: torch.Tensor) -> object:
    with torch.inference_mode():
        return kornia.enhance.jpeg_codec_differentiable(images.float() / 255, torch.tensor([float(QUALITY)]))


def seconds(run: Callable[[torch.Tensor], object], images: torch.Tensor) -> float:
    start = time.perf_counter()
    run(images)
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    images = data.load("shapes", train=COUNT, validation=8, test=8).train.images
    peers = {"shiftcal.dct_low_pass": ours, "Pillow": pillow, "kornia": with_kornia}
    for run in peers.values():
        run(images)
    times = {name: [] for name in peers}
    for _ in range(ROUNDS):
        for name, run in peers.items():
            times[name].append(seconds(run, images))
    best = statistics.median(times["shiftcal.dct_low_pass"])
    print(f"{COUNT} images of 32×32, quality {QUALITY}, one thread, median of {ROUNDS} interleaved rounds\n")
    print("| | images per second | time, relative to ours |\n|---|---:|---:|")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"| {name} | {COUNT / median:,.0f} | {median / best:.1f}× |")


if __name__ == "__main__":
    main()
