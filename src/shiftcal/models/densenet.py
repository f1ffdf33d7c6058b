"""DenseNet for small images: growth 32 and a 3×3 stem (Huang et al., CVPR 2017).

Names in the state dict: conv1, dense1–dense4.<i>.bn1, conv1, bn2, conv2, trans1–trans3.bn, conv, bn, linear: those of
the focal-calibration code base.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shiftcal.models.resnet import Images, Logits, conv


class DenseLayer(nn.Module):
    """A 1×1 and a 3×3 convolution, whose result is put before the input's channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, 4 * growth, 1)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), conv(4 * growth, growth)

    def forward(self, x: Tensor) -> Tensor:
        """Return new channels and old ones."""
        new = self.conv2(self.bn2(self.conv1(self.bn1(x).relu())).relu())
        return torch.cat([new, x], dim=1)


class Transition(nn.Module):
    """Halve the channels and the image."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(inputs), conv(inputs, inputs // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a quarter of the pixels with half the channels."""
        return nn.functional.avg_pool2d(self.conv(self.bn(x).relu()), 2)


class DenseNet(nn.Module):
    """Four dense blocks with transitions between them, and a linear classifier."""

    def __init__(self, blocks: tuple[int, int, int, int], growth: int, num_classes: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.conv1 = conv(3, channels)
        for stage, count in enumerate(blocks, start=1):
            layers = [DenseLayer(channels + growth * place, growth) for place in range(count)]
            self.add_module(f"dense{stage}", nn.Sequential(*layers))
            channels += growth * count
            if stage < len(blocks):
                self.add_module(f"trans{stage}", Transition(channels))
                channels //= 2
        self.bn, self.linear = nn.BatchNorm2d(channels), nn.Linear(channels, num_classes)

    def forward(self, images: Images) -> Logits:
        """Return logits."""
        x = self.conv1(images)
        for name in ("dense1", "trans1", "dense2", "trans2", "dense3", "trans3", "dense4"):
            x = self.get_submodule(name)(x)
        logits: Tensor = self.linear(self.bn(x).relu().mean((2, 3)))
        return logits


def densenet121(num_classes: int) -> DenseNet:
    """Build DenseNet-121."""
    return DenseNet((6, 12, 24, 16), 32, num_classes)
