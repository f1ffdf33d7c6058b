"""A whole audit beside what it cannot do without: the forward passes alone, and the corruptions alone.

    python benchmarks/audit.py                  # two cores: 1,000 images, five corruptions
    python benchmarks/audit.py --images 10000 --corruptions all --validation 5000   # a GPU

A ResNet-18 on noise of 32×32 pixels. The audit's time is divided by the sum of the two; the aim is at most 1.5. What
a process pays once (imports, the device's start) is paid by a small audit before, and printed.
"""

from __future__ import annotations

import argparse
import time

import torch

from shiftcal import models
from shiftcal.auditing.audit import Images, audit
from shiftcal.auditing.grid import STRENGTHS, ShiftGrid
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import MemorySplit
from shiftcal.evaluation import predict
from shiftcal.shifts.lazy import Augmented

PREPROCESS = Preprocessing((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def noise(count: int, seed: int, device: str) -> MemorySplit:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return MemorySplit(images, torch.arange(count) % 10).to(device)


def timed(function, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--validation", type=int, default=500)
    parser.add_argument("--corruptions", default="gaussian_noise,defocus_blur,fog,contrast,pixelate")
    parser.add_argument("--batch-size", type=int, default=500)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    names, size = tuple(options.corruptions.split(",")), options.batch_size
    torch.manual_seed(0)
    model = models.build("resnet18", 10).to(device, memory_format=torch.channels_last).eval()
    test, validation = noise(options.images, 0, device), noise(options.validation, 1, device)
    images = Images("noise", tuple("abcdefghij"), test, validation)
    cells = [split for _, _, split in ShiftGrid(names).cells(test, {})]
    augmented = [Augmented(validation, strength) for strength in STRENGTHS]

    def forward() -> None:
        for _ in range(1 + len(cells)):
            predict(model, test, PREPROCESS, batch_size=size)
        for _ in range(1 + len(augmented)):
            predict(model, validation, PREPROCESS, batch_size=size)

    def corruptions() -> None:
        for split in [*cells, *augmented]:
            for _ in split.parts(size):
                pass

    def whole(images: Images = images, names: tuple[str, ...] = names) -> None:
        audit(model, images, preprocess=PREPROCESS, corruptions=names, batch_size=size, progress=False)

    few = Images("noise", images.classes, noise(50, 2, device), noise(50, 3, device))
    print(f"{'once':<24} {timed(lambda: whole(few, ()), device):8.2f} s")
    predict(model, test, PREPROCESS, batch_size=size)  # warm at this size
    parts = {"forward passes": timed(forward, device), "corruptions and views": timed(corruptions, device)}
    seconds = timed(whole, device)
    for name, value in parts.items():
        print(f"{name:<24} {value:8.2f} s")
    print(f"{'whole audit':<24} {seconds:8.2f} s  {seconds / sum(parts.values()):.2f} times their sum")


if __name__ == "__main__":
    main()
