"""ResNets for small images: a 3×3 stem and no max-pooling (He et al., CVPR 2016).

Names in the state dict: conv1, bn1, layer1–layer4.<i>.conv1, bn1, conv2, bn2 (conv3, bn3 in bottlenecks), shortcut.0
and shortcut.1 where the shape changes, fc. They are those of the focal-calibration code base, whose weights load.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

Images = Float[Tensor, "batch 3 height width"]
Logits = Float[Tensor, "batch classes"]


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """Make a convolution without bias that keeps the image's size at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def projection(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Make the shortcut: nothing where the shape stays, else a 1×1 convolution."""
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width), nn.BatchNorm2d(width)
        self.shortcut = projection(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's change to its input."""
        change = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        out: Tensor = (change + self.shortcut(x)).relu()
        return out


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1 ones, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1, self.bn1 = conv(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv(width, outputs, 1), nn.BatchNorm2d(outputs)
        self.shortcut = projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's change to its input."""
        change = self.bn1(self.conv1(x)).relu()
        change = self.bn3(self.conv3(self.bn2(self.conv2(change)).relu()))
        out: Tensor = (change + self.shortcut(x)).relu()
        return out


class ResNet(nn.Module):
    """Four stages of residual blocks, each half as large and twice as wide as the one before, and a classifier.

    Before the classifier the last stage's features are averaged over the image, or over each of `pool` × `pool` parts.
    """

    def __init__(
        self, block: type[BasicBlock | Bottleneck], blocks: tuple[int, int, int, int], num_classes: int, pool: int = 1
    ) -> None:
        super().__init__()
        self.pool = pool
        self.conv1, self.bn1 = conv(3, 64), nn.BatchNorm2d(64)
        inputs = 64
        for stage, count in enumerate(blocks):
            width, layers = 64 * 2**stage, []
            for place in range(count):
                layers.append(block(inputs, width, stride=2 if stage > 0 and place == 0 else 1))
                inputs = width * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs * pool**2, num_classes)

    def forward(self, images: Images) -> Logits:
        """Return logits."""
        x = self.bn1(self.conv1(images)).relu()
        for name in ("layer1", "layer2", "layer3", "layer4"):
            x = self.get_submodule(name)(x)
        x = x.mean((2, 3)) if self.pool == 1 else adaptive_avg_pool2d(x, self.pool).flatten(1)
        logits: Tensor = self.fc(x)
        return logits


def resnet18(num_classes: int) -> ResNet:
    """Build ResNet-18."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet50(num_classes: int) -> ResNet:
    """Build ResNet-50."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)


def resnet50_pool2(num_classes: int) -> ResNet:
    """Build ResNet-50 with a classifier of 2×2 means, as FGR's authors released it for Tiny-ImageNet."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, pool=2)


def resnet110(num_classes: int) -> ResNet:
    """Build the calibration literature's ResNet-110: bottlenecks [3, 4, 26, 3], not He et al.'s small one."""
    return ResNet(Bottleneck, (3, 4, 26, 3), num_classes)
