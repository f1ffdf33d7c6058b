import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from shiftcal import ConstraintMomentum, _tensors, losses, rectified_backward, rectify
from shiftcal.gradients.rules import RULES, add

entries = st.floats(-10, 10, allow_nan=False).filter(lambda v: v == 0 or abs(v) > 1e-3)


@st.composite
def gradients(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Two gradients of the same length; the constraint is not zero."""
    n = draw(st.integers(1, 12))
    main = draw(arrays(np.float64, n, elements=entries))
    constraint = draw(arrays(np.float64, n, elements=entries).filter(lambda v: np.abs(v).max() > 0.1))
    return torch.from_numpy(main), torch.from_numpy(constraint)


@given(gradients())
@settings(deadline=None)
def test_never_points_against_the_constraint(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    main, constraint = pair
    assert rectify(main, constraint).dot(constraint) >= -1e-9 * (1 + main.norm() * constraint.norm())


@given(gradients())
@settings(max_examples=40, deadline=None)
def test_is_the_projection_that_a_solver_finds(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    main, constraint = (g.numpy() for g in pair)
    solved = minimize(
        lambda g: ((g - main) ** 2).sum(),
        jac=lambda g: 2 * (g - main),
        x0=constraint,
        constraints={"type": "ineq", "fun": lambda g: g @ constraint, "jac": lambda _: constraint},
        method="SLSQP",
        options={"ftol": 1e-11, "maxiter": 500},
    )
    assert solved.success
    np.testing.assert_allclose(rectify(*pair).numpy(), solved.x, atol=1e-4)


@given(gradients())
@settings(deadline=None)
def test_unchanged_when_not_in_conflict(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    main, constraint = pair
    if main.dot(constraint) >= 0:
        assert torch.equal(rectify(main, constraint), main)
    else:
        assert not torch.equal(rectify(main, constraint), main)


@given(gradients())
@settings(deadline=None)
def test_idempotent(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    main, constraint = pair
    once = rectify(main, constraint)
    torch.testing.assert_close(rectify(once, constraint), once, atol=1e-9, rtol=1e-9)


@given(gradients(), st.floats(1e-4, 1e4))
@settings(deadline=None)
def test_scale_of_the_constraint_is_irrelevant(pair: tuple[torch.Tensor, torch.Tensor], scale: float) -> None:
    main, constraint = pair
    constraint = constraint / constraint.norm()
    # ε = 1e-12 next to a squared norm of 1e-8 at the smallest scale.
    tolerance = 2e-4 * float(main.norm())
    torch.testing.assert_close(rectify(main, scale * constraint), rectify(main, constraint), atol=tolerance, rtol=0)


def test_pinned_values() -> None:
    main, constraint = torch.tensor([3.0, -4.0, 1.0]), torch.tensor([0.0, 2.0, 0.0])
    assert rectify(main, constraint).tolist() == pytest.approx([3, 0, 1])
    assert add(main, constraint, weight=0.5).tolist() == pytest.approx([3, -3, 1])
    assert RULES["none"](main, constraint).tolist() == [3, -4, 1]
    # With ε as large as the squared norm, half of the projection is left.
    assert rectify(main, constraint, eps=4.0).tolist() == pytest.approx([3, -2, 1])


@pytest.mark.parametrize("rule", ["rectify", "sum", "none"])
@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf"), -float("inf"), 1e30])
def test_zero_or_non_finite_constraint_leaves_the_main_gradient(rule: str, bad: float) -> None:
    main = torch.tensor([1.0, -2.0])
    assert torch.equal(RULES[rule](main, torch.tensor([0.0, bad])), main)


@pytest.mark.usefixtures("unchecked")
def test_bad_gradients() -> None:
    with pytest.raises(ValueError, match=r"`main` should be a flat floating-point gradient. Found"):
        rectify(torch.zeros(2, 2), torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"`constraint` should be torch.float32 .2., as `main`. Found .*float64 .3."):
        rectify(torch.zeros(2), torch.zeros(3, dtype=torch.float64))


# The two losses below are linear in w, so that their gradients are known.
def two_losses(w: torch.Tensor, main: list[float], constraint: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    return (w * torch.tensor(main)).sum(), (w * torch.tensor(constraint)).sum()


def test_backward_uses_one_scalar_for_all_parameters() -> None:
    a, b = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    main, constraint = 3 * a.sum() - 2 * b.sum(), a.sum() + 2 * b.sum()
    report = rectified_backward(main, constraint, [a, b])
    # d = 3 − 4 = −1, ‖c‖² = 5: both parameters move by c/5, although the first alone would not conflict.
    assert (a.grad.item(), b.grad.item()) == pytest.approx((3.2, -1.6))
    assert report.conflict
    assert not report.skipped
    assert report.cosine.item() == pytest.approx(-1 / (13**0.5 * 5**0.5))
    assert (report.main_norm.item(), report.constraint_norm.item()) == pytest.approx((13**0.5, 5**0.5))


@pytest.mark.parametrize(("rule", "expected"), [("rectify", [1.0, 0.0]), ("sum", [1.0, 1.0]), ("none", [1.0, -1.0])])
def test_backward_rules(rule: str, expected: list[float]) -> None:
    w = torch.zeros(2, requires_grad=True)
    rectified_backward(*two_losses(w, [1.0, -1.0], [0.0, 2.0]), [w], rule=rule)
    assert w.grad.tolist() == pytest.approx(expected)


def test_backward_accumulates_as_torch_does_and_leaves_frozen_and_unused_parameters_alone() -> None:
    w, unused = torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)
    frozen = torch.zeros(2)
    w.grad = torch.full((2,), 7.0)
    rectified_backward(*two_losses(w + frozen, [1.0, 1.0], [1.0, 1.0]), iter([w, frozen, unused]))
    assert w.grad.tolist() == [8, 8]
    assert frozen.grad is None
    assert unused.grad is None
    unused.grad = torch.ones(3)
    rectified_backward(*two_losses(w, [1.0, 1.0], [1.0, 1.0]), [w, unused])
    assert w.grad.tolist() == [9, 9]
    assert unused.grad.tolist() == [1, 1, 1]


def test_parameters_of_one_loss_alone_get_their_gradient() -> None:
    a, b = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    rectified_backward(3 * a.sum() + b.sum(), 2 * b.sum(), [a, b])
    assert a.grad.item() == 3
    a.grad = b.grad = None
    rectified_backward(b.sum(), -2 * b.sum() + a.sum(), [a, b])
    assert a.grad.item() == pytest.approx(0.4)


def test_half_precision_does_not_overflow_the_dot_product() -> None:
    w = torch.zeros(1000, dtype=torch.float16, requires_grad=True)
    report = rectified_backward(-w.float().sum(), 300 * w.float().sum(), [w])
    assert report.conflict
    assert not report.skipped
    assert w.grad.abs().max() < 1e-3


def test_the_cosine_is_that_with_the_running_mean() -> None:
    w = torch.zeros(2, requires_grad=True)
    report = rectified_backward(w[0] - w[1], 2 * w[1], [w], state=ConstraintMomentum(0.5))
    assert report.cosine.item() == pytest.approx(-(0.5**0.5))
    assert report.constraint_norm.item() == pytest.approx(2)


def test_backward_counts_what_it_skips() -> None:
    w = torch.zeros(2, requires_grad=True)
    for bad in (0.0, float("nan"), float("inf")):
        report = rectified_backward(*two_losses(w, [1.0, -1.0], [0.0, bad]), [w])
        assert report.skipped
        assert not report.conflict
        assert report.cosine == 0
        assert w.grad.tolist() == [1, -1]
        w.grad = None


def test_backward_keeps_dtype_and_memory_order() -> None:
    weight = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    half = torch.ones(5, dtype=torch.bfloat16, requires_grad=True)
    main, constraint = (weight**2).sum() + half.sum().float(), -(weight**3).sum() - half.sum().float()
    expected_main, expected_constraint = 2 * weight.detach(), -3 * weight.detach() ** 2
    rectified_backward(main, constraint, [weight, half])
    assert weight.grad.is_contiguous(memory_format=torch.channels_last)
    assert half.grad.dtype == torch.bfloat16
    flat = [torch.cat([g.flatten(), s * torch.ones(5)]) for g, s in ((expected_main, 1.0), (expected_constraint, -1.0))]
    torch.testing.assert_close(weight.grad.flatten(), rectify(*flat)[:-5])


def test_momentum_projects_by_the_running_mean() -> None:
    def backward(w: torch.Tensor, main: torch.Tensor, constraint: torch.Tensor, state: ConstraintMomentum) -> object:
        w.grad = None
        return rectified_backward(main, constraint, [w], state=state)

    state = ConstraintMomentum(0.5)
    w = torch.zeros(2, requires_grad=True)
    backward(w, *two_losses(w, [1.0, -1.0], [0.0, 2.0]), state)
    assert state.mean.tolist() == [0, 1]
    report = backward(w, *two_losses(w, [1.0, -1.0], [0.0, -1.0]), state)
    assert state.mean.tolist() == [0, 0]  # 0.5·1 + 0.5·(−1)
    assert report.skipped
    state.mean.copy_(torch.tensor([0.0, 4.0]))
    report = backward(w, *two_losses(w, [1.0, -1.0], [0.0, 0.0]), state)
    assert report.skipped, "a step without a gradient of its own is not projected"
    assert w.grad.tolist() == [1, -1]
    assert state.mean.tolist() == [0, 2]
    state.mean.zero_()
    backward(w, *two_losses(w, [1.0, -1.0], [-4.0, 0.0]), state)
    assert w.grad.tolist() == pytest.approx([0, -1])
    backward(w, *two_losses(w, [1.0, -1.0], [0.0, 1.0]), state)
    assert state.mean.tolist() == pytest.approx([-1, 0.5])
    assert w.grad.tolist() == pytest.approx(rectify(torch.tensor([1.0, -1.0]), torch.tensor([-1.0, 0.5])).tolist())


def test_momentum_survives_a_bad_gradient_and_a_checkpoint() -> None:
    state = ConstraintMomentum(0.5)
    state(torch.tensor([2.0, 0.0]))
    w = torch.zeros(2, requires_grad=True)
    report = rectified_backward(*two_losses(w, [-1.0, 0.0], [float("nan"), 0.0]), [w], state=state)
    assert report.skipped
    assert w.grad.tolist() == [-1, 0]
    assert state.mean.tolist() == [1, 0]
    other = ConstraintMomentum(0.5)
    other.load_state_dict(state.state_dict())
    assert torch.equal(other(torch.ones(2)), state(torch.ones(2)))
    with pytest.raises(ValueError, match=r"`beta` should be in \[0, 1\)"):
        ConstraintMomentum(1.0)
    with pytest.raises(ValueError, match="`gradient` should be of length 2, as before"):
        state(torch.ones(3))


def test_momentum_is_updated_in_place() -> None:
    state = ConstraintMomentum(0.5)
    mean = state(torch.ones(2))
    address = mean.data_ptr()
    state(torch.zeros(2))
    assert state.mean.data_ptr() == address, "a captured step finds it where it was"
    assert isinstance(state, torch.nn.Module)
    assert list(state.state_dict()) == ["mean"]
    assert list(ConstraintMomentum(0.5).state_dict()) == []
    assert torch.nn.ModuleList([state]).double()[0].mean.dtype == torch.float64


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rule", list(RULES))
def test_nothing_is_read_back_from_the_device(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fake tensor has no values: reading one, which would stall a GPU, is an error. On a CPU targets are looked at.
    monkeypatch.setattr(_tensors, "check_range", lambda *_: None)
    with FakeTensorMode():
        model = torch.nn.Linear(4, 3)
        logits, targets = model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.int64)
        rectified_backward(
            losses.dual_focal(logits, targets),
            losses.soft_ece(logits, targets),
            model.parameters(),
            rule=rule,
            state=ConstraintMomentum(0.9),
        )
        assert model.weight.grad.shape == (3, 4)


def test_unknown_rule_and_no_parameters() -> None:
    w = torch.zeros(2, requires_grad=True)
    with pytest.raises(
        ValueError, match=r"`rule` should be one of cagrad, none, pcgrad, rectify, sum. .*Did you mean 'rectify'?"
    ):
        rectified_backward(w.sum(), w.sum(), [w], rule="rectfy")
    with pytest.raises(ValueError, match="`main_loss` should be a scalar tensor that requires a gradient"):
        rectified_backward(w.sum().detach(), w.sum(), [w])
    with pytest.raises(ValueError, match="`parameters` should be at least one tensor that requires a gradient"):
        rectified_backward(w.sum(), w.sum(), [])


def test_proposition_calibration_loss_does_not_rise_to_first_order() -> None:
    """The paper's proposition on a small network: L_calib(θ − η·g) ≤ L_calib(θ) + O(η²), where plain descent rises."""
    found = 0
    for seed in range(20):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).double()
        inputs, targets = torch.randn(64, 5, dtype=torch.float64), torch.randint(0, 4, (64,))

        def constraint() -> torch.Tensor:
            return losses.soft_ece(model(inputs), targets)  # noqa: B023

        def change(rule: str, eta: float) -> float:
            """Return how much the constraint rises along a rule's direction, per unit of step size."""
            before = constraint()
            model.zero_grad()  # noqa: B023
            report = rectified_backward(
                losses.dual_focal(model(inputs), targets),  # noqa: B023
                before,
                model.parameters(),  # noqa: B023
                rule=rule,
            )
            conflicts.append(bool(report.conflict))  # noqa: B023
            saved = [p.detach().clone() for p in model.parameters()]  # noqa: B023
            with torch.no_grad():
                for p in model.parameters():  # noqa: B023
                    p -= eta * p.grad
                after = constraint()
                for p, s in zip(model.parameters(), saved, strict=True):  # noqa: B023
                    p.copy_(s)
            return (after.item() - before.item()) / eta

        conflicts: list[bool] = []
        rises = [change("rectify", eta) for eta in (1e-3, 1e-4, 1e-5)]
        if conflicts[0]:
            found += 1
            assert change("none", 1e-5) > 0, "the plain gradient raises the constraint"
            assert abs(rises[2]) < 1e-3 * change("none", 1e-5) + 1e-6
            assert abs(rises[2]) <= abs(rises[1]) + 1e-9 <= abs(rises[0]) + 2e-9, "what is left is of second order"
        else:
            assert rises[2] <= 1e-9
    assert found >= 3, "the check needs networks whose gradients conflict"


def test_channels_last_gradients_are_those_of_contiguous_ones() -> None:
    """The vector follows memory; what a parameter gets must not."""
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 5, 1), torch.nn.Conv2d(5, 2, 3)]
        model = torch.nn.Sequential(*layers).double().to(memory_format=layout)
        images = torch.randn(4, 3, 8, 8, dtype=torch.float64).to(memory_format=layout)
        out = model(images)
        report = rectified_backward(out.square().mean(), (-out.square() + out).mean(), model.parameters())
        results.append(([p.grad for p in model.parameters()], report))
        for p in model.parameters():
            assert p.grad is not None
            assert p.grad.is_contiguous(memory_format=layout if p.ndim == 4 else torch.contiguous_format)
    (first, report), (second, other) = results
    assert report.conflict
    assert other.conflict
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)


def test_a_parameter_that_is_listed_twice_counts_once() -> None:
    w = torch.tensor([1.0, -1.0], requires_grad=True)
    once, twice = [], []
    for found, parameters in ((once, [w]), (twice, [w, w])):
        w.grad = None
        report = rectified_backward((w * torch.tensor([1.0, 2.0])).sum(), w[1] - 3 * w[0], parameters)
        found += [w.grad.clone(), report.cosine, report.main_norm]
    for one, other in zip(once, twice, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("of", ["other", "w"])
def test_a_main_loss_that_depends_on_no_parameter_is_refused(of: str) -> None:
    w, other = (torch.ones(2, requires_grad=True) for _ in range(2))
    with pytest.raises(ValueError, match="`main_loss` should be one that depends on some of `parameters`"):
        rectified_backward(other.sum(), {"other": other, "w": w}[of].prod(), [w])
    assert w.grad is None


def test_the_running_mean_is_loaded_as_a_modules_buffer_is() -> None:
    used = ConstraintMomentum(beta=0.5)
    used(torch.tensor([2.0, 4.0], dtype=torch.float64))
    again = ConstraintMomentum(beta=0.5)
    again.load_state_dict({"mean": torch.tensor([1.0, 2.0])})  # of another type
    torch.testing.assert_close(again(torch.zeros(2, dtype=torch.float64)), torch.tensor([0.5, 1.0]).double())
    with pytest.raises(RuntimeError, match="Missing key"):
        used.load_state_dict({})
    used.load_state_dict({"mean": torch.tensor([1.0, 2.0])})
    assert used.mean.dtype == torch.float64, "it stays where and what it is"
    fresh = ConstraintMomentum(beta=0.5)
    fresh.load_state_dict(ConstraintMomentum(beta=0.5).state_dict())  # of a run that has not met its constraint
    assert fresh.mean is None


class Checkpointed(torch.nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.block, self.head, self.reentrant = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=self.reentrant))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_reentrant_checkpoints_are_refused_and_others_are_taken() -> None:
    """They would hide the block's parameters: none of their gradients, and no word of it."""
    x, y = torch.randn(8, 3), torch.tensor([0, 1] * 4)
    for reentrant in (True, False):
        model = Checkpointed(reentrant=reentrant)
        logits = model(x.requires_grad_(reentrant))
        both = losses.cross_entropy(logits, y), losses.soft_ece(logits, y)
        if reentrant:
            with pytest.raises(ValueError, match=r"`model` should be free of reentrant.*use_reentrant=False"):
                rectified_backward(*both, model.parameters())
        else:
            rectified_backward(*both, model.parameters())
            assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())


def test_a_constraint_that_alone_hides_parameters_is_refused() -> None:
    """The same block, with and without a reentrant checkpoint, in two forward passes."""
    model = Checkpointed(reentrant=True)
    x, y = torch.randn(8, 3), torch.tensor([0, 1] * 4)
    main_loss = losses.cross_entropy(model.head(model.block(x)), y)
    constraint_loss = losses.soft_ece(model(x.requires_grad_()), y)
    with pytest.raises(ValueError, match="`model` should be free of reentrant"):
        rectified_backward(main_loss, constraint_loss, model.parameters())


def test_a_rule_of_another_length_is_refused() -> None:
    model = torch.nn.Linear(3, 2)
    logits, targets = model(torch.randn(4, 3)), torch.tensor([0, 1, 1, 0])
    both = losses.cross_entropy(logits, targets), losses.soft_ece(logits, targets)
    with pytest.raises(ValueError, match=r"`rule` should be a function that returns \[8\].*Found `rule = \[3\]"):
        rectified_backward(*both, model.parameters(), rule=lambda main, constraint: main[:3])


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_list_of_parameters_and_no_loss_is_named() -> None:
    model = torch.nn.Linear(2, 2)
    loss = model(torch.ones(1, 2)).sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for listed, found in (
        (optimizer.param_groups, "a list with a dict"),
        (model.named_parameters(), "a generator with a tuple"),
        (model, "a single Linear"),
        (model.weight, "a single Parameter"),
    ):
        with pytest.raises(ValueError, match=rf"`parameters` should be an iterable of tensors.*{found}"):
            rectified_backward(loss, loss, listed)
    with pytest.raises(ValueError, match="`constrained` should be an iterable of tensors"):
        rectified_backward(loss, loss, model.parameters(), constrained=model)
    with pytest.raises(ValueError, match=r"`constraint_loss` should be a scalar tensor.*Found .* = 0.0"):
        rectified_backward(loss, 0.0, model.parameters())
