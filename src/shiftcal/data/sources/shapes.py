"""The embedded data set: eight silhouettes with a tempting surface texture, drawn by seed.

What it models: a deployed classifier meets images whose *shape* is what it should look at, while the training data
offer a *shortcut*: a fine surface texture that goes with the class about two times out of three. Shapes vary in
position, size, rotation, colour, background and lighting, so that they take some learning; the texture is a faint sine
wave near the limit of the resolution, easy to pick up and the first thing that noise, blur, compression or another
material destroys. A network that knows only the texture is right about two times out of three; one that knows only
the silhouette can be right nearly always. The shift `texture` breaks the correlation and leaves everything else in
each image as it was.

What it does not model: label noise, class imbalance, new classes, or natural image statistics. Its parameters were set
for these properties with plain cross-entropy, before any other method was run on it, and are not tuned to a method.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.data.dataset import Dataset
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import MemorySplit

SIZE = 32
_EDGE = 0.04  # width of the silhouette's soft edge, in half-widths of the image


def _polygon(x: Tensor, y: Tensor, sides: int, apothem: float) -> Tensor:
    angles = [2 * math.pi * k / sides - math.pi / 2 for k in range(sides)]
    return torch.stack([x * math.cos(a) + y * math.sin(a) for a in angles]).amax(0) - apothem


def _box(x: Tensor, y: Tensor, half_width: float, half_height: float) -> Tensor:
    return torch.maximum(x.abs() - half_width, y.abs() - half_height)


def _star(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 0.62 * (1 + 0.32 * torch.cos(5 * torch.atan2(y, x)))


# Signed distance (about), negative inside, for an object of radius 1 around the origin.
SILHOUETTES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": lambda x, y: torch.hypot(x, y) - 0.75,
    "square": lambda x, y: _box(x, y, 0.66, 0.66),
    "triangle": lambda x, y: _polygon(x, y, sides=3, apothem=0.48),
    "star": _star,
    "cross": lambda x, y: torch.minimum(_box(x, y, 0.82, 0.3), _box(x, y, 0.3, 0.82)),
    "ring": lambda x, y: (torch.hypot(x, y) - 0.62).abs() - 0.2,
    "hexagon": lambda x, y: _polygon(x, y, sides=6, apothem=0.7),
    "diamond": lambda x, y: (x.abs() / 0.62 + y.abs() / 0.95 - 1) * 0.52,
}


def shapes(
    *,
    seed: int = 0,
    train: int = 6000,
    validation: int = 1000,
    test: int = 2000,
    texture_match: float = 0.65,
    texture_amplitude: float = 0.06,
) -> Dataset:
    """Draw the data set: training, validation and test images alike, and the shift `texture` at five severities.

    Args:
        seed: The set is a function of it and the other arguments alone.
        train: Number of training images.
        validation: Number of validation images.
        test: Number of test images.
        texture_match: Probability that an object wears its class's texture; severity s of the shift `texture` lowers
            it to (1 − s/5) of this, so that at 5 every object wears another class's.
        texture_amplitude: Strength of the texture; 0 leaves the silhouette alone.

    Example:
        >>> shapes(train=16, validation=8, test=8).train.images.shape
        torch.Size([16, 3, 32, 32])
    """
    for name, count in (("train", train), ("validation", validation), ("test", test)):
        if count < len(SILHOUETTES):
            raise wrong(name, f"at least {len(SILHOUETTES)}, one image per class", count)
    if not 0 <= texture_match <= 1:
        raise wrong("texture_match", "in [0, 1]", texture_match)
    if not 0 <= texture_amplitude <= 0.5:
        raise wrong("texture_amplitude", "in [0, 0.5]", texture_amplitude)

    def draw(count: int, part: int, match: float) -> MemorySplit:
        return MemorySplit(*draw_shapes(count, seed=4 * seed + part, match=match, amplitude=texture_amplitude))

    return Dataset(
        name="shapes",
        classes=tuple(SILHOUETTES),
        preprocess=Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
        train=draw(train, 0, texture_match),
        validation=draw(validation, 1, texture_match),
        test=draw(test, 2, texture_match),
        shifts={"texture": tuple(draw(test, 2, texture_match * (1 - s / 5)) for s in range(1, 6))},
    )


def draw_shapes(
    count: int, *, seed: int, match: float, amplitude: float
) -> tuple[UInt8[Tensor, "n 3 32 32"], Int[Tensor, " n"]]:
    """Draw images and classes. The same seed draws the same objects whatever `match` and `amplitude` are."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(count, *shape, generator=generator)

    targets = torch.randperm(count, generator=generator) % len(SILHOUETTES)
    mask = _silhouettes(targets, uniform(-0.18, 0.18, 2), uniform(0.75, 1.05), uniform(-14, 14).deg2rad())
    base = uniform(0.25, 0.75, 3, 1, 1)
    coarse = torch.nn.functional.interpolate(uniform(-0.25, 0.25, 3, 4, 4), SIZE, mode="bilinear")
    clutter = torch.nn.functional.interpolate(uniform(-0.1, 0.1, 3, 10, 10), SIZE, mode="bilinear")
    direction = torch.nn.functional.normalize(torch.randn(count, 3, 1, 1, generator=generator), dim=1)
    colour = (base + uniform(0.3, 0.6, 1, 1, 1) * direction).clamp(0.05, 0.95)
    worn = _worn_texture(
        targets, uniform(0, 1), torch.randint(1, len(SILHOUETTES), (count,), generator=generator), match
    )
    texture = amplitude * _texture(worn, uniform(0, 2 * math.pi))
    image = torch.lerp(base + coarse + clutter, colour + texture[:, None], mask[:, None])
    image = image * _lighting(uniform(0.7, 1.3), uniform(-0.15, 0.15, 2))
    image = image + 0.02 * torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return (image.clamp(0, 1) * 255).round().to(torch.uint8), targets


def _pixels() -> tuple[Float[Tensor, "32 32"], Float[Tensor, "32 32"]]:
    """Return the pixels' x and y, the image spanning −1..1."""
    line = (torch.arange(SIZE) + 0.5) / SIZE * 2 - 1
    return line.expand(SIZE, SIZE), line[:, None].expand(SIZE, SIZE)


def _silhouettes(targets: Tensor, centre: Tensor, radius: Tensor, angle: Tensor) -> Float[Tensor, "n 32 32"]:
    """Draw each sample's silhouette, 1 inside and 0 outside with a soft edge."""
    x, y = _pixels()
    x, y = x - centre[:, 0, None, None], y - centre[:, 1, None, None]
    cos, sin, radius = (v[:, None, None] for v in (angle.cos(), angle.sin(), radius))
    u, v = (cos * x + sin * y) / radius, (cos * y - sin * x) / radius
    distance = torch.empty_like(u)
    for k, silhouette in enumerate(SILHOUETTES.values()):
        distance[targets == k] = silhouette(u[targets == k], v[targets == k])
    return torch.sigmoid(-distance * radius / _EDGE)


def _worn_texture(targets: Tensor, chance: Tensor, other: Tensor, match: float) -> Int[Tensor, " n"]:
    """Choose each object's texture: its class's with probability `match`, else another class's."""
    return torch.where(chance < match, targets, (targets + other) % len(SILHOUETTES))


def _texture(worn: Int[Tensor, " n"], phase: Float[Tensor, " n"]) -> Float[Tensor, "n 32 32"]:
    """Draw a sine wave of 11 to 15 periods. Directions span a quarter turn: a mirrored texture is no other class's."""
    x, y = _pixels()
    angle = (worn + 0.5) / len(SILHOUETTES) * math.pi / 2
    periods = 11 + 4 * (3 * worn % len(SILHOUETTES)) / (len(SILHOUETTES) - 1)
    along = angle.cos()[:, None, None] * x + angle.sin()[:, None, None] * y
    return torch.sin(math.pi * periods[:, None, None] * along + phase[:, None, None])


def _lighting(level: Float[Tensor, " n"], slope: Float[Tensor, "n 2"]) -> Float[Tensor, "n 1 32 32"]:
    """Draw light of a level that falls off linearly across the image."""
    x, y = _pixels()
    return (level[:, None, None] * (1 + slope[:, 0, None, None] * x + slope[:, 1, None, None] * y))[:, None]
