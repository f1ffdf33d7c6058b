"""Batches of augmented, normalised images per second against torch's DataLoader, interleaved in one run.

python benchmarks/loader.py [cpu|cuda]

The peer is the usual set-up for CIFAR: a Dataset of Pillow images with random crop, flip, conversion and normalisation
per image, in two worker processes. Ours crops, flips and normalises whole batches on the device. On a GPU the share of
a ResNet-18 step that is data is measured as well.
"""

import random
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

from shiftcal.data import Dataset, MemorySplit, MixedEpoch
from shiftcal.data.sources.cifar import CIFAR
from shiftcal.experiments.config import load_config
from shiftcal.experiments.setup import Setup, set_up
from shiftcal.filtering import LowPassPolicy
from shiftcal.training.step import training_step

COUNT, BATCH, ROUNDS = 20_000, 128, 5


def random_split(count: int) -> MemorySplit:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return MemorySplit(images, torch.randint(0, 10, (count,), generator=generator))


class PerImage(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """What torchvision's CIFAR10 with RandomCrop(32, padding=4), RandomHorizontalFlip, ToTensor and Normalize does."""

    def __init__(self, split: MemorySplit) -> None:
        self.images, self.targets = split.images.permute(0, 2, 3, 1).numpy(), split.targets.tolist()
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (CIFAR.mean, CIFAR.std))

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = ImageOps.expand(Image.fromarray(self.images[index]), 4)
        left, top = random.randint(0, 8), random.randint(0, 8)
        image = image.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = ImageOps.mirror(image)
        tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
        return tensor.sub_(self.mean).div_(self.std), self.targets[index]


def ours(run: Setup, epoch: int, ratio: float) -> Iterator[object]:
    mixed = MixedEpoch(run.task.train, policy=LowPassPolicy(ratio), seed=0, epoch=epoch)
    generator = torch.Generator(run.state.device).manual_seed(epoch)
    for batch in mixed.batches(BATCH):
        yield run.task.prepare(batch, generator, None)


def seconds(batches: Iterator[object], device: torch.device) -> float:
    start = time.perf_counter()
    for _ in batches:
        pass
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def data_share(run: Setup) -> tuple[float, float]:
    """Milliseconds of a plain ResNet-18 step with one batch used again and again, and with all of them prepared."""
    batches = list(MixedEpoch(run.task.train, policy=LowPassPolicy(0.05, (15,)), seed=0, epoch=0).batches(BATCH))[:-1]
    generator = torch.Generator(run.state.device).manual_seed(0)
    fixed = run.task.prepare(batches[0], generator, None)

    def steps(prepared: bool) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for batch in batches:
            mix = run.task.prepare(batch, generator, None) if prepared else fixed
            training_step(run.state.model, run.state.optimizer, run.state.plain, mix)
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start) / len(batches)

    steps(True)
    pairs = [(steps(False), steps(True)) for _ in range(3)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    split = random_split(COUNT)
    few = MemorySplit(split.images[:100], split.targets[:100])
    dataset = Dataset("random", tuple("0123456789"), CIFAR, split, few, few)
    config = load_config("demo", ["method=ce", f"device={device}", "train.model=resnet18"])
    run = set_up(config, dataset)
    peer = DataLoader(PerImage(split), BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    contenders = {
        "shiftcal, crop, flip, normalise": lambda k: ours(run, k, 0.0),
        "shiftcal, and 5 % low-pass filtered": lambda k: ours(run, k, 0.05),
        "DataLoader, two workers": lambda _: iter(peer),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for k in range(ROUNDS + 1):
        for name, make in contenders.items():
            times[name].append(seconds(make(k), run.state.device))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{COUNT:,} images of 32×32 in batches of {BATCH}, {where}, median of {ROUNDS} interleaved rounds\n")
    print("| | images per second | time, relative to ours |\n|---|---:|---:|")
    for name, median in medians.items():
        print(f"| {name} | {COUNT / median:,.0f} | {median / next(iter(medians.values())):.1f}× |")
    if device == "cuda":
        alone, with_data = data_share(run)
        print(
            f"\nResNet-18 step: {alone:.2f} ms with one batch again and again, {with_data:.2f} ms with its data: "
            f"{100 * (with_data - alone) / with_data:.1f} % is data"
        )


if __name__ == "__main__":
    main()
