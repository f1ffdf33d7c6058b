"""Gaussian 2-Wasserstein distances of penultimate features (FGR paper, "Feature-Space Wasserstein Analysis")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shiftcal._errors import wrong
from shiftcal.data.split import ImageSplit, MemorySplit
from shiftcal.evaluation import Parts, device_of, evaluating
from shiftcal.filtering import dct_low_pass
from shiftcal.models import classifier_of

Preprocess = Callable[[Tensor], Tensor]


def gaussian_wasserstein(one: Float[Tensor, "n width"], other: Float[Tensor, "m width"]) -> float:
    """Compute the 2-Wasserstein distance of two Gaussians with the samples' means and covariances.

    W₂² = ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2·(Σ₁^½ Σ₂ Σ₁^½)^½), in float64, covariances divided by n − 1. Square roots are
    by symmetric eigendecomposition; eigenvalues that rounding made negative count as zero.

    Example:
        >>> x = torch.tensor([[-1.0], [1.0]])
        >>> round(gaussian_wasserstein(x, x + 3), 6)
        3.0
    """
    for name, sample in (("one", one), ("other", other)):
        if sample.ndim != 2 or len(sample) < 2 or sample.shape[1] != one.shape[1]:
            raise wrong(name, f"of shape [2 or more, {one.shape[-1]}]", list(sample.shape))
    (mean_1, cov_1), (mean_2, cov_2) = _moments(one), _moments(other)
    root = _square_root(cov_1)
    cross = torch.linalg.eigvalsh(_symmetric(root @ cov_2 @ root)).clamp_min(0).sqrt().sum()
    squared = (mean_1 - mean_2).square().sum() + cov_1.trace() + cov_2.trace() - 2 * cross
    return float(squared.clamp_min(0).sqrt())


def _moments(sample: Tensor) -> tuple[Tensor, Tensor]:
    values = sample.double()
    mean = values.mean(0)
    centred = values - mean
    return mean, centred.T @ centred / (len(values) - 1)


def _square_root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(_symmetric(matrix))
    root: Tensor = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
    return root


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2


@dataclass(frozen=True)
class Filtered:
    """A split whose images are low-pass filtered with one quality λ as they are used."""

    split: ImageSplit
    quality: int

    def to(self, device: torch.device | str) -> Filtered:
        """Filter on a device."""
        return replace(self, split=self.split.to(device))

    def parts(self, size: int, rank: int = 0, world_size: int = 1) -> Iterator[tuple[Tensor, MemorySplit]]:
        """Go through the samples in order, see `data.ImageSplit`."""
        for index, part in self.split.parts(size, rank, world_size):
            yield index, MemorySplit(dct_low_pass(part.images, self.quality), part.targets)


def features_of(
    model: nn.Module, split: Parts, preprocess: Preprocess, *, batch_size: int = 500
) -> Float[Tensor, "n width"]:
    """Compute what the classifier gets of each image, in evaluation mode, on the model's device."""
    _, classifier = classifier_of(model)
    seen: list[Tensor] = []
    handle = classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].float().flatten(1)))
    try:
        with evaluating(model), torch.inference_mode():
            for _, part in split.to(device_of(model)).parts(batch_size):
                model(preprocess(part.images))
    finally:
        handle.remove()
    return torch.cat(seen)


@dataclass(frozen=True)
class MixedDistances:
    """Distances between D_orig and D_mix: by λ at a fixed ρ, and by ρ at a fixed λ."""

    by_quality: tuple[float, ...]
    by_ratio: tuple[float, ...]


def mixed_distances(
    model: nn.Module,
    split: ImageSplit,
    preprocess: Preprocess,
    *,
    qualities: Sequence[int] = (25, 18, 15, 10, 7),
    ratios: Sequence[float] = (0.05, 0.1, 0.2, 0.4),
    quality: int = 15,
    ratio: float = 0.1,
    seed: int = 0,
    batch_size: int = 500,
    advance: Callable[[], object] = lambda: None,
) -> MixedDistances:
    """Measure how far D_mix, of which a share ρ is filtered with quality λ, is from D_orig, the same images untouched.

    Which images are filtered is drawn once; a larger share holds the smaller ones. `advance` is called after every
    pass through the network and every distance.
    """
    if bad := [r for r in (ratio, *ratios) if not 0 <= r <= 1]:
        raise wrong("ratios", "in 0..1", bad[0])
    original = features_of(model, split, preprocess, batch_size=batch_size)
    advance()
    order = torch.randperm(len(original), generator=torch.Generator().manual_seed(seed))
    known: dict[int, Tensor] = {}

    def distance(quality: int, ratio: float) -> float:
        if quality not in known:
            known[quality] = features_of(model, Filtered(split, quality), preprocess, batch_size=batch_size)
            advance()
        chosen = order[: round(ratio * len(original))].to(original.device)
        mixed = original.index_copy(0, chosen, known[quality][chosen])
        found = gaussian_wasserstein(original, mixed)
        advance()
        return found

    return MixedDistances(
        tuple(distance(one, ratio) for one in qualities), tuple(distance(quality, one) for one in ratios)
    )


def shift_distances(
    model: nn.Module,
    clean: Parts,
    shifts: Iterable[Parts],
    preprocess: Preprocess,
    *,
    batch_size: int = 500,
    advance: Callable[[], object] = lambda: None,
) -> tuple[float, ...]:
    """Measure how far each shifted set is from the clean one."""
    original = features_of(model, clean, preprocess, batch_size=batch_size)
    advance()
    found = []
    for split in shifts:
        shifted = features_of(model, split, preprocess, batch_size=batch_size)
        found.append(gaussian_wasserstein(original, shifted))
        advance()
    return tuple(found)
