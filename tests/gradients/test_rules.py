"""The gradient rules against TorchJD, which nobody here wrote."""

import pytest
import torch
from torchjd.aggregation import CAGrad, DualProj, PCGrad
from torchjd.linalg import QuadprogProjector

from shiftcal.gradients.rules import RULES, cagrad, pcgrad, rectify


def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random pairs of gradients with angles and ratios of lengths from nearly equal to extreme, in float64."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for cosine in (-0.99, -0.7, -0.2, -0.01, 0.01, 0.3, 0.9):
        for ratio in (0.05, 0.5, 1.0, 2.0, 30.0):
            u, v = torch.linalg.qr(torch.randn(12, 2, generator=generator, dtype=torch.float64))[0].T
            made.append((u, ratio * (cosine * u + (1 - cosine**2) ** 0.5 * v)))
    return made


def test_pcgrad_is_torchjds() -> None:
    for main, constraint in pairs():
        expected = PCGrad()(torch.stack([main, constraint]))
        torch.testing.assert_close(pcgrad(main, constraint), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("c", [0.1, 0.5, 0.9])
def test_cagrad_is_torchjds(c: float) -> None:
    for main, constraint in pairs():
        expected = CAGrad(c=c)(torch.stack([main, constraint]))
        # Its solver stops at about 1e-4 of the minimiser; ours is closed-form, see the next test.
        torch.testing.assert_close(
            cagrad(main, constraint, c=c), expected, rtol=2e-3, atol=2e-3 * float(expected.norm())
        )


@pytest.mark.parametrize("c", [0.1, 0.5, 0.9])
def test_cagrad_minimises_its_inner_problem(c: float) -> None:
    w = torch.linspace(0, 1, 20001, dtype=torch.float64)[:, None]
    for main, constraint in pairs():
        mean = (main + constraint) / 2
        candidates = w * main + (1 - w) * constraint
        values = candidates @ mean + c * mean.norm() * candidates.norm(dim=1)
        best = candidates[values.argmin()]
        expected = mean + c * mean.norm() / best.norm() * best
        ours = cagrad(main, constraint, c=c)
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3 * float(expected.norm()))
        assert (ours - mean).norm() <= c * mean.norm() * (1 + 1e-9), "it stays in the ball"


def test_the_dual_cone_projection_with_preference_for_the_main_loss_is_rectify() -> None:
    # Its default regularisation of 1e-4 moves the projection; without it the two agree.
    projector = QuadprogProjector(norm_eps=1e-12, reg_eps=1e-12)
    projection = DualProj(pref_vector=torch.tensor([1.0, 0.0], dtype=torch.float64), projector=projector)
    for main, constraint in pairs():
        expected = projection(torch.stack([main, constraint]))
        torch.testing.assert_close(rectify(main, constraint), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", ["pcgrad", "cagrad"])
def test_degenerate_gradients(rule: str) -> None:
    main = torch.tensor([1.0, -2.0])
    for constraint in (main, -main, 1e-20 * main, torch.zeros(2), torch.tensor([float("nan"), 1.0])):
        result = RULES[rule](main, constraint)
        assert result.isfinite().all()
    assert torch.equal(RULES[rule](main, torch.zeros(2)), main)
    assert RULES[rule](torch.zeros(2), main).isfinite().all()


@pytest.mark.parametrize("rule", ["rectify", "sum", "pcgrad", "cagrad"])
@pytest.mark.parametrize("scale", [10.0, 1e-4])
def test_half_precision_neither_overflows_nor_vanishes(rule: str, scale: float) -> None:
    main, constraint = torch.ones(1000).half(), (-scale * torch.ones(1000)).half()
    expected = RULES[rule](main.double(), constraint.double())
    ours = RULES[rule](main, constraint)
    assert ours.dtype == torch.float16
    torch.testing.assert_close(ours.double(), expected, rtol=1e-3, atol=1e-3)


def test_bad_c() -> None:
    with pytest.raises(ValueError, match=r"`c` should be in \[0, 1\)"):
        cagrad(torch.ones(2), torch.ones(2), c=1.0)
