import inspect

import pytest
import torch
from scipy import stats

from shiftcal import losses
from shiftcal.augment import mixup, mixup_loss

MAIN_LOSSES = [name for name in losses.__all__ if "reduction" in inspect.signature(getattr(losses, name)).parameters]


def test_images_are_the_convex_combination(natural_images: torch.Tensor) -> None:
    mixed = mixup(natural_images, torch.Generator().manual_seed(0))
    x = natural_images.double()
    expected = mixed.share.double() * x + (1 - mixed.share.double()) * x[mixed.partner]
    torch.testing.assert_close(mixed.images.double(), expected, rtol=0, atol=1e-4)
    assert sorted(mixed.partner.tolist()) == list(range(len(x)))
    assert (mixed.partner != torch.arange(len(x))).float().mean() > 0.9


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.0, 100.0])
def test_the_share_has_the_beta_distribution(alpha: float) -> None:
    generator, images = torch.Generator().manual_seed(0), torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    shares = [mixup(images, generator, alpha=alpha).share.item() for _ in range(2000)]
    assert stats.kstest(shares, stats.beta(alpha, alpha).cdf).pvalue > 0.01


@pytest.mark.parametrize("name", MAIN_LOSSES)
def test_every_main_loss_has_its_two_target_form(name: str) -> None:
    loss = getattr(losses, name)
    logits = torch.randn(16, 5, dtype=torch.float64, requires_grad=True)
    y, partners, share = torch.arange(16) % 5, (torch.arange(16) + 2) % 5, torch.tensor(0.3, dtype=torch.float64)
    value = mixup_loss(loss, logits, y, partners, share)
    per_sample = 0.3 * loss(logits, y, reduction="none") + 0.7 * loss(logits, partners, reduction="none")
    torch.testing.assert_close(value, per_sample.mean())
    assert torch.autograd.grad(value, logits)[0].isfinite().all()
    torch.testing.assert_close(mixup_loss(loss, logits, y, partners, torch.tensor(1.0)), loss(logits, y))


def test_cross_entropy_of_two_targets_is_that_of_their_mixture() -> None:
    logits, y, partners = torch.randn(16, 5), torch.arange(16) % 5, (torch.arange(16) + 2) % 5
    soft = 0.3 * torch.eye(5)[y] + 0.7 * torch.eye(5)[partners]
    expected = torch.nn.functional.cross_entropy(logits, soft)
    torch.testing.assert_close(mixup_loss(losses.cross_entropy, logits, y, partners, torch.tensor(0.3)), expected)
    torch.testing.assert_close(mixup_loss(losses.cross_entropy, logits, y, partners, 0.3), expected)


@pytest.mark.usefixtures("unchecked")
def test_bad_input() -> None:
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    for alpha in (0.0, 0.003, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"`alpha` should be in 0.01..1000"):
            mixup(images, alpha=alpha)
    y = torch.arange(3)
    with pytest.raises(ValueError, match=r"`targets` should be integer class indices .*mixup_loss.*shares of classes"):
        losses.cross_entropy(torch.zeros(3, 4), torch.full((3, 4), 0.25))
    with pytest.raises(
        ValueError, match=r"`targets` should be integer class indices\. Found `targets = torch.float32`"
    ):
        losses.cross_entropy(torch.zeros(3, 4), torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"`partners` should be of shape \[3\], one per target"):
        mixup_loss(losses.cross_entropy, torch.zeros(3, 4), y, y[:2], torch.tensor(0.5))
    with pytest.raises(ValueError, match=r"`share` should be one number for the batch. Found `share = \[3\]`"):
        mixup_loss(losses.cross_entropy, torch.zeros(3, 4), y, y, torch.full((3,), 0.5))


def test_the_default_is_the_papers() -> None:
    assert inspect.signature(mixup).parameters["alpha"].default == 0.3
