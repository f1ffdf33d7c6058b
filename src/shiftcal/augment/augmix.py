"""AugMix: mixtures of chains of simple operations, and the consistency term that goes with them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from shiftcal._errors import check_count, wrong
from shiftcal._tensors import at_least_float32
from shiftcal.augment._inputs import Rows, check_images, on_chosen
from shiftcal.augment.operations import OPERATIONS, affine

_NAMES = tuple(OPERATIONS)
# What `affine` calls the magnitude of each operation that moves pixels.
_GEOMETRIC = {
    "rotate": "degrees",
    "shear_x": "shear_x",
    "shear_y": "shear_y",
    "translate_x": "shift_x",
    "translate_y": "shift_y",
}
_TONAL = tuple(name for name in OPERATIONS if name not in _GEOMETRIC)


def augmix(
    images: UInt8[Tensor, "batch 3 height width"],
    generator: torch.Generator | None = None,
    *,
    views: int = 2,
    width: int = 3,
    depth: int = 3,
    severity: float = 3.0,
) -> Float[Tensor, "views batch 3 height width"]:
    """Make AugMix views, (1 − m)·x + m·Σ_i w_i·chain_i(x), in grey levels 0..255 (Hendrycks et al., ICLR 2020).

    Each of `width` chains applies 1 to `depth` operations, drawn for every image, each at a severity of its own in
    [0.1, severity]; w ~ Dirichlet(1, …, 1), m ~ Beta(1, 1). The nine operations are those that are no test corruption:
    no colour, contrast, brightness or sharpness.

    Args:
        images: Images, already cropped and flipped, not yet normalised.
        generator: Where randomness comes from; torch's own by default.
        views: How many views of each image.
        width: Chains per view.
        depth: Most operations in a chain.
        severity: Upper end of the operations' severity, on a scale to 10.

    Example:
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> augmix(images, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 8, 3, 32, 32])
    """
    check_images(images)
    for name, value in (("views", views), ("width", width), ("depth", depth)):
        check_count(name, value)
    if not 0.1 <= severity <= 10:
        raise wrong("severity", "in 0.1..10", severity)
    return augmix_of(images, generator, views=views, width=width, depth=depth, severity=severity)


def augmix_of(
    images: Tensor,
    generator: torch.Generator | None,
    *,
    views: int = 2,
    width: int = 3,
    depth: int = 3,
    severity: float = 3.0,
    rows_of: Rows | None = None,
) -> Tensor:
    """Make AugMix views of images that need no checks, see `augmix`; they may be rows of a larger batch."""
    n, device = len(images), images.device
    total = n if rows_of is None else rows_of.total
    index = None if rows_of is None else rows_of.index(n, device)

    def of_rows(drawn: Tensor) -> Tensor:
        return drawn if index is None else drawn[..., index]

    def integers(low: int, high: int) -> Tensor:
        drawn = torch.randint(low, high, (views * width * total,), generator=generator, device=device)
        return of_rows(drawn.view(-1, total)).flatten()

    def uniform(*shape: int) -> Tensor:
        return of_rows(torch.rand((*shape, total), generator=generator, device=device))

    length = integers(1, depth + 1)
    chains = images.repeat(views * width, 1, 1, 1)
    for position in range(depth):
        drawn = integers(0, len(_NAMES))
        level = 0.1 + (severity - 0.1) * uniform(views * width).flatten()
        sign = torch.where(uniform(views * width).flatten() < 0.5, -1.0, 1.0)
        chains = _operate(chains, drawn.where(position < length, -1), level, sign)
    w = -torch.log1p(-uniform(views, width)[..., None, None, None])  # exponential: the shares are Dirichlet(1, …, 1)
    m = uniform(views)[..., None, None, None]
    mixture = (w / w.sum(1, keepdim=True) * chains.view(views, width, *images.shape)).sum(1)
    return images + m * (mixture - images)


def _operate(
    images: UInt8[Tensor, "batch 3 height width"],
    drawn: Int[Tensor, " batch"],
    level: Float[Tensor, " batch"],
    sign: Float[Tensor, " batch"],
) -> UInt8[Tensor, "batch 3 height width"]:
    """Apply to each image the operation drawn for it, −1 for none, at the authors' magnitude for its level."""
    height, width = images.shape[-2:]
    magnitude = {
        "autocontrast": level,
        "equalize": level,
        "posterize": 4 - (level * 4 / 10).trunc(),
        "solarize": 256 - (level * 256 / 10).trunc(),
        "rotate": sign * (level * 30 / 10).trunc(),
        "shear_x": sign * level * 0.3 / 10,
        "shear_y": sign * level * 0.3 / 10,
        "translate_x": sign * (level * (width / 3) / 10).trunc(),
        "translate_y": sign * (level * (height / 3) / 10).trunc(),
    }
    chosen = {name: drawn == index for index, name in enumerate(_NAMES)}
    for name in _TONAL:
        images = on_chosen(OPERATIONS[name], images, chosen[name], magnitude[name])
    moves = [magnitude[name].where(chosen[name], 0.0) for name in _GEOMETRIC]
    moved = torch.stack([chosen[name] for name in _GEOMETRIC]).any(0)
    return on_chosen(_move, images, moved, *moves)


def _move(images: Tensor, *moves: Tensor) -> Tensor:
    return affine(images, **dict(zip(_GEOMETRIC.values(), moves, strict=True)))


def jensen_shannon(logits: Float[Tensor, "views batch classes"]) -> Float[Tensor, ""]:
    """Compute the Jensen–Shannon divergence of the views' predictions, mean over batch of (1/V) Σ_v KL(p_v ‖ p̄).

    It is the consistency term of AugMix (Hendrycks et al., ICLR 2020, equation 1); p̄ is the mean of the p_v.

    Example:
        >>> same = torch.randn(1, 4, 10).expand(3, 4, 10)
        >>> abs(jensen_shannon(same).item()) < 1e-6
        True
    """
    if logits.ndim != 3 or 0 in logits.shape or logits.shape[2] < 2 or not logits.is_floating_point():
        found = f"{logits.dtype} {list(logits.shape)}"
        raise wrong("logits", "floating point of shape [V, N, K] with K ≥ 2", found)
    log_p = at_least_float32(logits).log_softmax(-1)
    log_mean = log_p.logsumexp(0) - math.log(len(logits))
    return (log_p.exp() * (log_p - log_mean)).sum(-1).mean()


def augmix_loss(
    loss: Callable[[Tensor, Tensor], Tensor],
    logits: Float[Tensor, "images classes"],
    targets: Int[Tensor, " batch"],
    *,
    weight: float = 12.0,
) -> Float[Tensor, ""]:
    """Compute L(clean view) + weight · JSD(all views), the AugMix objective with any main loss L.

    Args:
        loss: The main loss, a function of logits and targets.
        logits: Those of the clean images, then of the first view, then of the second, and so on.
        targets: Classes of the clean images.
        weight: Weight of the consistency term.

    Example:
        >>> from shiftcal import losses
        >>> logits = torch.zeros(3 * 4, 10)
        >>> round(augmix_loss(losses.cross_entropy, logits, torch.arange(4)).item(), 4)  # log 10 + 12 · 0
        2.3026
    """
    if not weight >= 0:
        raise wrong("weight", "at least 0", weight)
    n = len(targets)
    if n == 0 or len(logits) % n or len(logits) == n:
        raise wrong("logits", f"of two or more views of {n} images", list(logits.shape))
    return loss(logits[:n], targets) + weight * jensen_shannon(logits.view(-1, n, logits.shape[1]))
