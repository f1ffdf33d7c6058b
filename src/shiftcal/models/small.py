"""A six-layer convolutional network that trains on two CPU cores."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


def _layer(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class SmallNet(nn.Module):
    """Six 3×3 convolutions of 24, 48 and 96 channels, halving the image three times, then a linear classifier."""

    def __init__(self, num_classes: int, width: int = 24) -> None:
        super().__init__()
        stages = [(3, width), (width, 2 * width), (2 * width, 4 * width)]
        self.features = nn.Sequential(*[nn.Sequential(_layer(a, b, stride=2), _layer(b, b)) for a, b in stages])
        self.classifier = nn.Linear(4 * width, num_classes)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Return logits."""
        features = self.features(images).mean((2, 3))
        logits: Tensor = self.classifier(features)
        return logits
