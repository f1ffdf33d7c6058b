"""A tenth of CIFAR-10 and a network that learns it by heart: what a ResNet-50 is to all of it, small enough for a CPU.

A plugin, see README.md beside it: --plugin memorised from this folder.
"""

from dataclasses import replace

from torch import nn
from torch.nn.functional import relu

from shiftcal import data, models
from shiftcal.data.dataset import Dataset
from shiftcal.data.hold_out import hold_out
from shiftcal.data.sources.cifar import cifar10
from shiftcal.models.resnet import BasicBlock, conv


def tenth(root: str, *, seed: int = 0) -> Dataset:
    """Take 500 training images of each class; the 5,000 validation and 10,000 test images stay."""
    whole = cifar10(root, seed=seed)
    kept = hold_out(whole.train.targets, per_class=500, seed=seed)
    return replace(whole, name="cifar10-tenth", train=whole.train.take(kept))


class NarrowResNet(nn.Module):
    """A ResNet-18 of a quarter of the width, whose first convolution halves the image."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, 16, stride=2), nn.BatchNorm2d(16)
        widths = (16, 16, 32, 64, 128)
        stages = zip(widths, widths[1:], (1, 2, 2, 2), strict=False)
        self.stages = nn.Sequential(
            *[nn.Sequential(BasicBlock(a, b, stride), BasicBlock(b, b, 1)) for a, b, stride in stages]
        )
        self.fc = nn.Linear(widths[-1], num_classes)

    def forward(self, images):
        return self.fc(self.stages(relu(self.bn1(self.conv1(images)))).mean((2, 3)))


data.register("cifar10-tenth", tenth)
models.register("narrow", NarrowResNet)
