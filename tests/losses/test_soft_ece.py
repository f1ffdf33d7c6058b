import numpy as np
import pytest
import torch

from shiftcal.losses import soft_ece


def reference(logits: np.ndarray, targets: np.ndarray, bins: int, t: float, ends: bool = False) -> float:
    """Write the formulas of the paper's appendix out, in float64."""
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    confidence, correct = p.max(1), (p.argmax(1) == targets).astype(float)
    xi = np.linspace(0, 1, bins) if ends else (np.arange(1, bins + 1) - 0.5) / bins
    u = np.exp(-((confidence[:, None] - xi) ** 2) / t)
    u /= u.sum(1, keepdims=True)
    total = 0.0
    for m in range(bins):
        size = u[:, m].sum()
        accuracy, mean_confidence = (u[:, m] * correct).sum() / size, (u[:, m] * confidence).sum() / size
        total += size / len(logits) * (accuracy - mean_confidence) ** 2
    return total**0.5


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize(("bins", "temperature"), [(15, 0.1), (5, 0.01), (1, 1.0)])
def test_is_the_formula(classes: int, bins: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(50, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, classes, (50,), generator=generator)
    ours = soft_ece(logits, targets, bins=bins, temperature=temperature)
    assert ours.item() == pytest.approx(reference(logits.numpy(), targets.numpy(), bins, temperature), rel=1e-9)


def test_centres_may_include_the_ends() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = 2 * torch.randn(50, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 7, (50,), generator=generator)
    ours = soft_ece(logits, targets, centres="ends")
    assert ours.item() == pytest.approx(reference(logits.numpy(), targets.numpy(), 15, 0.1, ends=True), rel=1e-9)
    assert ours.item() != pytest.approx(soft_ece(logits, targets).item(), rel=1e-4)


def test_pinned_values() -> None:
    logits = torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.5, 0.0]], dtype=torch.float64)
    assert soft_ece(logits, torch.tensor([0, 1, 1, 0])).item() == pytest.approx(0.0542017599, abs=1e-9)
    sure_and_wrong = torch.tensor([[50.0, 0.0]] * 3, dtype=torch.float64)
    assert soft_ece(sure_and_wrong, torch.tensor([1, 1, 1])).item() == pytest.approx(1.0, abs=1e-9)


def test_gradient() -> None:
    logits = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4), requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: soft_ece(z, torch.arange(12) % 4), logits)


def test_gradient_is_finite_at_exactly_zero_error() -> None:
    logits = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)  # confidence 1, always right
    loss = soft_ece(logits, torch.tensor([0, 1]))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.isfinite().all()


def test_mask_is_a_selection() -> None:
    logits, targets = torch.randn(20, 5, dtype=torch.float64), torch.arange(20) % 5
    mask = torch.arange(20) % 3 != 0
    torch.testing.assert_close(soft_ece(logits, targets, mask=mask), soft_ece(logits[mask], targets[mask]))
    nothing = torch.zeros(20, dtype=torch.bool)
    assert soft_ece(logits, targets, mask=nothing).item() == 0


def test_nan_is_not_hidden_unless_it_does_not_count() -> None:
    logits, targets = torch.randn(6, 3), torch.zeros(6, dtype=torch.int64)
    clean = soft_ece(logits[1:], targets[1:])
    logits[0] = float("nan")
    assert soft_ece(logits, targets).isnan()
    torch.testing.assert_close(soft_ece(logits, targets, mask=torch.arange(6) > 0), clean)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("mask", [torch.ones(4), torch.ones(1, dtype=torch.bool), torch.ones(4, 1, dtype=torch.bool)])
def test_bad_mask(mask: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"`mask` should be 4 booleans, one per sample. Found"):
        soft_ece(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64), mask=mask)


def test_bad_parameters() -> None:
    logits, targets = torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="`bins` should be an integer of at least 1"):
        soft_ece(logits, targets, bins=0)
    with pytest.raises(ValueError, match="`temperature` should be positive"):
        soft_ece(logits, targets, temperature=0.0)
