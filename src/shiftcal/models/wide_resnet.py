"""Wide ResNet for small images, post-activation (Zagoruyko & Komodakis, BMVC 2016).

Names in the state dict: conv1, bn1, layer1–layer3.<i>.conv1, bn1, conv2, bn2, downsample.0 and downsample.1 where the
shape changes, fc: those of the focal-calibration code base.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from shiftcal.models.resnet import Images, Logits, conv, projection


class WideBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width), nn.BatchNorm2d(width)
        self.downsample = projection(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's change to its input."""
        change = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        out: Tensor = (change + self.downsample(x)).relu()
        return out


class WideResNet(nn.Module):
    """Three stages of (depth − 2)/6 blocks, 16, 32 and 64 channels times the width, and a linear classifier."""

    def __init__(self, depth: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, 16), nn.BatchNorm2d(16)
        inputs = 16
        for stage in range(3):
            outputs, layers = 16 * 2**stage * width, []
            for place in range((depth - 2) // 6):
                layers.append(WideBlock(inputs, outputs, stride=2 if stage > 0 and place == 0 else 1))
                inputs = outputs
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                spread = math.sqrt(2 / (module.kernel_size[0] * module.kernel_size[1] * module.out_channels))
                nn.init.normal_(module.weight, 0.0, spread)

    def forward(self, images: Images) -> Logits:
        """Return logits."""
        x = self.bn1(self.conv1(images)).relu()
        for name in ("layer1", "layer2", "layer3"):
            x = self.get_submodule(name)(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def wrn26_10(num_classes: int) -> WideResNet:
    """Build Wide-ResNet-26-10."""
    return WideResNet(26, 10, num_classes)
