"""The recommended method, then FGR, in a loop of your own: four epochs show the calls, results/ what they can do.

python examples/own_loop.py
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from shiftcal import WeightAverage, corrupt, data, dct_low_pass, losses, metrics, models, rectified_backward
from shiftcal.augment import Perturbation

EPOCHS, BATCH = 4, 64
torch.manual_seed(0)
DATASET = data.load("shapes", train=2000, validation=200, test=500, texture_amplitude=0.15, texture_match=0.95)
TRAIN, TEST = DATASET.train, DATASET.test


def batches(split: data.ImageSplit) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw an epoch: uint8 images and their classes."""
    assert isinstance(split, data.MemorySplit)
    for rows in torch.randperm(len(split)).split(BATCH):
        yield split.images[rows], split.targets[rows]


def normalise(images: Tensor) -> Tensor:
    """Make stored images the network's input."""
    return images.float() / 127.5 - 1


def show(name: str, model: nn.Module, split: data.ImageSplit) -> None:
    """Print accuracy and ECE, clean and under Gaussian noise."""
    assert isinstance(split, data.MemorySplit)
    model.eval()
    noisy = corrupt(split.images, "gaussian_noise", severity=3)
    with torch.inference_mode():
        for where, images in (("clean", split.images), ("noisy", noisy)):
            probabilities = model(normalise(images)).softmax(-1)
            right, error = metrics.accuracy(probabilities, split.targets), metrics.ece(probabilities, split.targets)
            print(f"{name:9} {where}  accuracy {right:.1%}  ECE {error:.1%}")


def views() -> None:
    """Train with perturbed views, the dual focal loss and an average of the weights."""
    model = models.build("small", num_classes=len(DATASET.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    perturb, generator = Perturbation(augmix=0.6, amplitude=0.1, high_band=0.1), torch.Generator().manual_seed(0)
    average = WeightAverage(model, decay=0.98)
    for _ in range(EPOCHS):
        for images, targets in batches(TRAIN):
            loss = losses.dual_focal(model(normalise(perturb(images, generator))), targets, gamma=1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update()
    show("dfl+views", average.averaged(model, (normalise(images) for images, _ in batches(TRAIN))), TEST)


def fgr() -> None:
    """Train with FGR: some images are low-pass filtered, and gradients may not worsen calibration on the others."""
    model = models.build("small", num_classes=len(DATASET.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        for images, targets in batches(TRAIN):
            filtered = torch.rand(len(images)) < 0.05
            quality = torch.tensor([15, 18, 25])[torch.randint(3, (int(filtered.sum()),))]
            images[filtered] = dct_low_pass(images[filtered], quality)
            logits = model(normalise(images))
            main = losses.dual_focal(logits, targets, gamma=0.5)
            optimizer.zero_grad()
            rectified_backward(main, losses.soft_ece(logits, targets, mask=~filtered), model.parameters())
            optimizer.step()
    show("fgr", model, TEST)


if __name__ == "__main__":
    views()
    fgr()
