import numpy as np
import pytest
import torch

from shiftcal.losses import cross_entropy, dual_focal


def reference(logits: np.ndarray, targets: np.ndarray, gamma: float, runner_up: str) -> np.ndarray:
    """Write the formula out, sample by sample, in float64."""
    values = []
    for z, y in zip(logits, targets, strict=True):
        p = np.exp(z - z.max())
        p /= p.sum()
        others = [q for q in p if q < p[y]] if runner_up == "below" else [q for k, q in enumerate(p) if k != y]
        values.append(-((1 - p[y] + max(others, default=0.0)) ** gamma) * np.log(p[y]))
    return np.array(values)


@pytest.mark.parametrize("runner_up", ["below", "incorrect"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0, 5.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_is_the_formula(gamma: float, runner_up: str, classes: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(64, classes, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, classes, (64,), generator=generator)
    ours = dual_focal(logits, targets, gamma=gamma, runner_up=runner_up, reduction="none")
    np.testing.assert_allclose(ours, reference(logits.numpy(), targets.numpy(), gamma, runner_up), rtol=1e-10)


def test_pinned_values() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    targets = torch.tensor([0, 0, 0])
    below = dual_focal(logits, targets, gamma=2.0, reduction="none")
    # p = (.6652, .2447, .0900): (1 − .6652 + .2447)²·.4076; none below .0900: (1 − .0900)²·2.4076; ties are not below.
    assert below.tolist() == pytest.approx([0.13687644, 1.99360453, (2 / 3) ** 2 * np.log(3)], abs=1e-7)
    incorrect = dual_focal(logits, targets, gamma=2.0, runner_up="incorrect", reduction="none")
    assert incorrect.tolist() == pytest.approx([0.13687644, 5.97396319, np.log(3)], abs=1e-7)


def test_the_default_gamma_is_two() -> None:
    logits, targets = torch.randn(8, 4), torch.arange(8) % 4
    torch.testing.assert_close(dual_focal(logits, targets), dual_focal(logits, targets, gamma=2.0))


def test_gamma_zero_is_cross_entropy() -> None:
    logits, targets = torch.randn(8, 5), torch.arange(8) % 5
    torch.testing.assert_close(dual_focal(logits, targets, gamma=0.0), cross_entropy(logits, targets))


@pytest.mark.parametrize("runner_up", ["below", "incorrect"])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0])
def test_gradient_flows_through_the_runner_up(gamma: float, runner_up: str) -> None:
    logits = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3, 0, 1])
    assert torch.autograd.gradcheck(lambda z: dual_focal(z, targets, gamma=gamma, runner_up=runner_up), logits)


def test_bad_parameters() -> None:
    logits, targets = torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"`gamma` should be at least 0. Found `gamma = -1"):
        dual_focal(logits, targets, gamma=-1.0)


@pytest.mark.usefixtures("unchecked")
def test_unknown_runner_up() -> None:
    with pytest.raises(ValueError, match="`runner_up` should be 'below' or 'incorrect'"):
        dual_focal(torch.randn(4, 3), torch.zeros(4, dtype=torch.int64), runner_up="second")
