"""AugMix views per second against the per-image Pillow pipeline, on one core, interleaved in one run.

python benchmarks/augmix.py
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageOps

from shiftcal import data
from shiftcal.augment import augmix

COUNT, ROUNDS = 512, 15
MEAN, STD = (torch.tensor(v)[:, None, None] for v in ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)))


def affine(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)


def operate(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Apply one of the nine operations at a severity of its own, as the AugMix paper's appendix lists them."""
    level, sign = rng.uniform(0.1, 3.0), rng.choice([-1, 1])
    match rng.integers(9):
        case 0:
            return ImageOps.autocontrast(image)
        case 1:
            return ImageOps.equalize(image)
        case 2:
            return ImageOps.posterize(image, 4 - int(level * 4 / 10))
        case 3:
            return ImageOps.solarize(image, 256 - int(level * 256 / 10))
        case 4:
            return image.rotate(sign * int(level * 30 / 10), resample=Image.Resampling.BILINEAR)
        case 5:
            return affine(image, (1, sign * level * 0.03, 0, 0, 1, 0))
        case 6:
            return affine(image, (1, 0, 0, sign * level * 0.03, 1, 0))
        case 7:
            return affine(image, (1, 0, sign * int(level * image.width / 30), 0, 1, 0))
        case _:
            return affine(image, (1, 0, 0, 0, 1, sign * int(level * image.height / 30)))


def normalised(image: Image.Image) -> torch.Tensor:
    return (torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255 - MEAN) / STD


def pillow(images: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Make one view of each image, one after the other: width 3, depth 1 to 3, every chain normalised, then mixed."""
    views = []
    for array in images.permute(0, 2, 3, 1).numpy():
        image = Image.fromarray(array)
        weights, m = rng.dirichlet([1.0] * 3), rng.beta(1.0, 1.0)
        mixture = torch.zeros(3, *array.shape[:2])
        for weight in weights:
            chain = image
            for _ in range(rng.integers(1, 4)):
                chain = operate(chain, rng)
            mixture += float(weight) * normalised(chain)
        views.append((1 - m) * normalised(image) + m * mixture)
    return torch.stack(views)


def ours(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return (augmix(images, generator, views=1)[0] / 255 - MEAN) / STD


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    images = data.load("shapes", train=COUNT, validation=8, test=8).train.images
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    peers = {
        "shiftcal.augment.augmix": lambda: ours(images, generator),
        "per-image Pillow pipeline": lambda: pillow(images, rng),
    }
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(ROUNDS + 1):
        for name, run in peers.items():
            times[name].append(seconds(run))
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    print(f"{COUNT} images of 32×32, one view each, one thread, median of {ROUNDS} interleaved rounds\n")
    print("| | views per second | time, relative to ours |\n|---|---:|---:|")
    for name, median in medians.items():
        print(f"| {name} | {COUNT / median:,.0f} | {median / medians['shiftcal.augment.augmix']:.1f}× |")


if __name__ == "__main__":
    main()
