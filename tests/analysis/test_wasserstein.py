"""Distances against closed forms and scipy, and features of a network."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn

from shiftcal.analysis.wasserstein import (
    Filtered,
    features_of,
    gaussian_wasserstein,
    mixed_distances,
    shift_distances,
)
from shiftcal.data.split import MemorySplit
from shiftcal.filtering import dct_low_pass
from shiftcal.shifts.lazy import Corrupted


def sample(n: int, width: int, seed: int) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whitened(n: int, width: int, seed: int) -> Tensor:
    """A sample whose mean is 0 and whose covariance is exactly the identity."""
    x = sample(n, width, seed)
    x = x - x.mean(0)
    covariance = x.T @ x / (n - 1)
    return x @ torch.linalg.inv(torch.linalg.cholesky(covariance)).T


def test_diagonal_gaussians_have_a_closed_form() -> None:
    a, b = torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([3.0, 0.1, 0.5]).double()
    shift = torch.tensor([0.3, -1.0, 2.0]).double()
    one, other = whitened(200, 3, 0) * a, whitened(150, 3, 1) * b + shift
    expected = math.sqrt(float(shift.square().sum() + (a - b).square().sum()))
    assert gaussian_wasserstein(one, other) == pytest.approx(expected, rel=1e-9)


def test_full_covariances_agree_with_scipy() -> None:
    one, other = sample(80, 12, 2) @ sample(12, 12, 3), sample(90, 12, 4) @ sample(12, 12, 5) + 1
    c1, c2 = np.cov(one.numpy().T), np.cov(other.numpy().T)
    root = scipy.linalg.sqrtm(c1)
    cross = scipy.linalg.sqrtm(root @ c2 @ root).real
    squared = np.square(one.numpy().mean(0) - other.numpy().mean(0)).sum() + np.trace(c1 + c2 - 2 * cross)
    assert gaussian_wasserstein(one, other) == pytest.approx(math.sqrt(squared), rel=1e-7)


def test_it_is_a_distance_also_of_fewer_samples_than_dimensions() -> None:
    one, other = sample(10, 30, 6), sample(12, 30, 7)
    assert gaussian_wasserstein(one, one) == pytest.approx(0, abs=1e-5)
    assert gaussian_wasserstein(one, other) == pytest.approx(gaussian_wasserstein(other, one), rel=1e-8)
    assert gaussian_wasserstein(one, one + 2) == pytest.approx(2 * math.sqrt(30), rel=1e-8)
    with pytest.raises(ValueError, match="shape"):
        gaussian_wasserstein(one[:1], other)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    )


def scaled(images: Tensor) -> Tensor:
    return images.float() / 255


def test_features_are_what_the_classifier_gets(natural_images: Tensor) -> None:
    model, split = network().train(), MemorySplit(natural_images, torch.zeros(200, dtype=torch.long))
    found = features_of(model, split, scaled, batch_size=64)
    torch.testing.assert_close(found, model[:4](scaled(natural_images)).detach())
    assert model.training
    assert not model[4]._forward_pre_hooks


def test_mixed_distances_are_those_of_mixed_features(natural_images: Tensor) -> None:
    model, split = network(), MemorySplit(natural_images, torch.zeros(200, dtype=torch.long))
    steps = []
    found = mixed_distances(
        model, split, scaled, qualities=(25, 5), ratios=(0.0, 0.2, 0.5), quality=5, ratio=0.5, seed=1,
        advance=lambda: steps.append(1),
    )  # fmt: skip
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))[:100]
    mixed = natural_images.clone()
    mixed[order] = dct_low_pass(natural_images[order], 25)
    features = [model[:4](scaled(x)).detach() for x in (natural_images, mixed)]
    assert found.by_quality[0] == pytest.approx(gaussian_wasserstein(*features), rel=1e-4)
    assert found.by_ratio[0] == pytest.approx(0, abs=1e-5)
    assert found.by_ratio[0] < found.by_ratio[1] < found.by_ratio[2] == found.by_quality[1]
    assert len(steps) == 1 + 2 + 5


def test_stronger_shifts_are_further(natural_images: Tensor) -> None:
    split = MemorySplit(natural_images, torch.zeros(200, dtype=torch.long))
    shifts = [Corrupted(split, "contrast", k, "cifar") for k in (1, 5)]
    near, far = shift_distances(network(), split, shifts, scaled)
    assert 0 < near < far
    with pytest.raises(ValueError, match=r"0\.\.1"):
        mixed_distances(network(), split, scaled, ratios=(1.5,))


def test_filtered_splits_keep_order_and_targets(natural_images: Tensor) -> None:
    split = Filtered(MemorySplit(natural_images[:10], torch.arange(10)), 15)
    parts = list(split.to("cpu").parts(4))
    assert torch.cat([part.targets for _, part in parts]).tolist() == list(range(10))
    assert torch.equal(torch.cat([part.images for _, part in parts]), dct_low_pass(natural_images[:10], 15))
