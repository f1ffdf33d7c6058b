"""How often right and how sure a ResNet-50 is on training images, cropped and flipped as the constraint sees them.

python results/cifar10/paper/on_training_images.py MODEL.safetensors [CIFAR10]
"""

import sys

import torch
from safetensors.torch import load_file

from shiftcal import data, losses
from shiftcal.augment import crop_flip
from shiftcal.models import build

IMAGES = 1500


def main() -> None:
    model = build("resnet50", num_classes=10)
    model.load_state_dict(load_file(sys.argv[1]))
    model.eval()
    dataset = data.load("cifar10", root=sys.argv[2] if len(sys.argv) > 2 else None)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(dataset.train.targets), generator=generator)[:IMAGES]
    images = crop_flip(dataset.train.images[chosen], generator)
    targets = dataset.train.targets[chosen]
    with torch.no_grad():
        logits = torch.cat([model(dataset.preprocess(part)) for part in images.split(250)])
    right = (logits.argmax(1) == targets).float().mean().item()
    confidence = logits.softmax(1).amax(1).mean().item()
    print(f"right {100 * right:.1f} %, says {100 * confidence:.1f} %, Soft-ECE {losses.soft_ece(logits, targets):.3f}")


if __name__ == "__main__":
    main()
