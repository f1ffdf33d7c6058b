"""What a run of this folder says of the images that it was trained on, and of others.

python look.py RUN …    # in this folder
"""

import sys
from pathlib import Path

import memorised  # noqa: F401 (registers the data set and the network)
import torch

from shiftcal import load, losses, metrics
from shiftcal.augment import crop_flip
from shiftcal.experiments.config import config_of_run
from shiftcal.experiments.setup import load_dataset


def main(*runs: str) -> None:
    for run in runs:
        dataset, model = load_dataset(config_of_run(Path(run), trust=True)), load(run, trust=True)
        cropped = crop_flip(dataset.train.images, torch.Generator().manual_seed(0))
        parts = {
            "training images": (dataset.train.images, dataset.train.targets),
            "cropped and flipped": (cropped, dataset.train.targets),
            "validation images": (dataset.validation.images, dataset.validation.targets),
        }
        for name, (images, targets) in parts.items():
            p = model.predict(images.numpy(), batch_size=500)
            right, says, ece = metrics.accuracy(p, targets), float(p.amax(1).mean()), metrics.ece(p, targets)
            soft = float(losses.soft_ece(p.log(), targets))
            print(f"{run}  {name}: right {right:.1%}, says {says:.1%}, ECE {ece:.1%}, Soft-ECE {soft:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
