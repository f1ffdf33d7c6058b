"""Corruptions against the per-image pipeline of the benchmark's generators, in one run.

python benchmarks/corruptions.py        on the CPU (the peer needs ImageMagick for motion blur and snow)
python benchmarks/corruptions.py cuda   ours alone, on a GPU

The peer is tests/corruptions/reference.py: scikit-image, OpenCV, SciPy, Pillow and ImageMagick, one image after the
other, with frost's photographs read for every image and glass blur's offsets drawn for every pixel, as the generators
do. Ours runs on all cores of the machine.
"""

import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "corruptions")]

from made_images import make_natural_images, write_textures

from shiftcal.shifts.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES, _constants, corrupt

OURS, THEIRS, FULL = 2000, 60, 10_000


def ours(images: torch.Tensor, name: str, severity: int, folder: Path) -> float:
    """Seconds per image, the better of two runs after one that builds tables."""
    corrupt(images[:32], name, severity, frost=folder)
    times = []
    for _ in range(2):
        start = time.perf_counter()
        corrupt(images, name, severity, frost=folder)
        if images.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times) / len(images)


def theirs(arrays: np.ndarray, name: str, severity: int, folder: Path) -> float:
    """Seconds per image, the better of two runs."""
    import reference

    amount, rng = _constants()["cifar"][name][severity - 1], np.random.default_rng(0)
    options = {"frost": {"folder": folder, "scale": 0.2}, "glass_blur": {"one_by_one": True}}.get(name, {})
    times = []
    for _ in range(2):
        start = time.perf_counter()
        for array in arrays:
            getattr(reference, name)(array, amount, rng, **options)
        times.append(time.perf_counter() - start)
    return min(times) / len(arrays)


def full_set(images: torch.Tensor, folder: Path) -> float:
    """Seconds for all of CIFAR-10-C."""
    start = time.perf_counter()
    for name in CORRUPTIONS:
        for severity in SEVERITIES:
            corrupt(images, name, severity, frost=folder)
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    images = make_natural_images(OURS, 32, 32).to(device)
    arrays = np.ascontiguousarray(images[:THEIRS].permute(0, 2, 3, 1).cpu().numpy())
    mine: dict[str, float] = {}
    peer: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_textures(folder, size=(660, 495))
        for name in CORRUPTIONS + EXTRA_CORRUPTIONS:
            mine[name] = statistics.mean(ours(images, name, s, folder) for s in SEVERITIES)
            if device == "cpu":
                peer[name] = statistics.mean(theirs(arrays, name, s, folder) for s in SEVERITIES)
        total = full_set(make_natural_images(FULL, 32, 32).to(device), folder)
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"32×32, {where}; mean over five severities; ours on {OURS} images, the peer on {THEIRS}\n")
    print("| | ours, µs per image | peer, µs per image | peer / ours |\n|---|---:|---:|---:|")
    for name, seconds in mine.items():
        other = f"{1e6 * peer[name]:.0f} | {peer[name] / seconds:.1f}×" if peer else "|"
        print(f"| {name} | {1e6 * seconds:.1f} | {other} |")
    if peer:
        ratios = [peer[name] / mine[name] for name in CORRUPTIONS]
        print(f"\nGeometric mean over the 15: {math.exp(statistics.mean(map(math.log, ratios))):.1f}×")
    print(f"\nAll of CIFAR-10-C (75 × {FULL:,} images): {total:.1f} s")
    print("Slowest: " + ", ".join(sorted(CORRUPTIONS, key=lambda name: -mine[name])[:3]))


if __name__ == "__main__":
    main()
