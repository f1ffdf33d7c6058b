from functools import partial

import pytest
import torch

from shiftcal import ConstraintMomentum, losses, rectify
from shiftcal.augment import augmix_loss
from shiftcal.gradients import add
from shiftcal.training.inputs import Inputs
from shiftcal.training.objective import Objective
from shiftcal.training.step import count_correct, training_step

MAIN = partial(losses.dual_focal, gamma=2.0)


def main_loss(logits: torch.Tensor, mix: Inputs) -> torch.Tensor:
    return MAIN(logits, mix.targets)


def inputs(seed: int, n: int = 16) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, 4, 4, generator=generator, dtype=torch.float64)
    return Inputs(images, torch.randint(0, 5, (n,), generator=generator), torch.arange(n) % 4 == 0)


def setup(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.SGD]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(48, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5)
    ).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    optimizer.found_inf = torch.zeros(())
    return model, optimizer


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def gradient(model: torch.nn.Module, loss: torch.Tensor) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def conflicting() -> tuple[torch.nn.Module, torch.optim.SGD, Inputs, Inputs]:
    """Find a model and batches whose two gradients conflict."""
    for seed in range(50):
        model, optimizer = setup(seed)
        mix, original = inputs(2 * seed), inputs(2 * seed + 1)
        main = gradient(model, MAIN(model(mix.images), mix.targets))
        if main.dot(gradient(model, losses.soft_ece(model(original.images), original.targets))) < 0:
            return model, optimizer, mix, original
    raise AssertionError("no conflict found")


def test_plain_step_is_plain_sgd() -> None:
    model, optimizer = setup()
    mix, before = inputs(0), flat(model)
    expected = gradient(model, MAIN(model(mix.images), mix.targets))
    report = training_step(model, optimizer, Objective(main_loss), mix, None)
    torch.testing.assert_close(flat(model), before - 0.1 * expected)
    assert report.rectification is None
    assert report.gradient_norm.item() == pytest.approx(expected.norm().item())


class TwoBiases(torch.nn.Module):
    """Autograd gives both biases the very same tensor as their gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros(5, dtype=torch.float64)) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, :5] + (self.a + self.b)


class JoinedBiases(torch.nn.Module):
    """Autograd gives the parts of a joined tensor views of one gradient, and the other bias the whole of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.z = (torch.nn.Parameter(torch.zeros(n, dtype=torch.float64)) for n in (2, 3))
        self.b = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.flatten(1)[:, :5] + (torch.cat([self.a, self.z]) + self.b)


@pytest.mark.parametrize("kind", [TwoBiases, JoinedBiases])
def test_parameters_that_autograd_gives_one_gradient_are_scaled_once(kind: type[torch.nn.Module]) -> None:
    model, mix = kind(), inputs(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    optimizer.found_inf = torch.zeros(())
    expected = gradient(model, MAIN(model(mix.images), mix.targets))
    training_step(model, optimizer, Objective(main_loss, sum_reduction=True), mix)
    torch.testing.assert_close(flat(model), -0.1 * len(mix.targets) * expected)


def test_independent_constraint_is_algorithm_1() -> None:
    model, optimizer, mix, original = conflicting()
    before = flat(model)
    main = gradient(model, MAIN(model(mix.images), mix.targets))
    constraint = gradient(model, losses.soft_ece(model(original.images), original.targets))
    report = training_step(model, optimizer, Objective(main_loss, losses.soft_ece), mix, original)
    torch.testing.assert_close(flat(model), before - 0.1 * rectify(main, constraint))
    assert report.rectification.conflict
    assert not torch.equal(rectify(main, constraint), main)


def test_shared_constraint_sees_the_unfiltered_members_only() -> None:
    model, optimizer = setup(3)
    mix, before = inputs(7), flat(model)
    main = gradient(model, MAIN(model(mix.images), mix.targets))
    clean = ~mix.filtered
    constraint = gradient(model, losses.soft_ece(model(mix.images[clean]), mix.targets[clean]))
    training_step(model, optimizer, Objective(main_loss, losses.soft_ece, rule=add), mix, None)
    torch.testing.assert_close(flat(model), before - 0.1 * (main + constraint))


def test_sum_reduction_multiplies_after_the_rule_and_before_clipping() -> None:
    model, optimizer, mix, original = conflicting()
    before = flat(model)
    main = gradient(model, MAIN(model(mix.images), mix.targets))
    constraint = gradient(model, losses.soft_ece(model(original.images), original.targets))
    final = 16 * rectify(main, constraint)
    clip = 0.5 * final.norm().item()
    objective = Objective(main_loss, losses.soft_ece, sum_reduction=True, clip_norm=clip)
    report = training_step(model, optimizer, objective, mix, original)
    torch.testing.assert_close(flat(model), before - 0.1 * final * 0.5, rtol=1e-5, atol=1e-9)
    assert report.gradient_norm.item() == pytest.approx(final.norm().item())


def test_momentum_state_is_carried() -> None:
    model, optimizer, mix, original = conflicting()
    state = ConstraintMomentum(0.98)
    training_step(model, optimizer, Objective(main_loss, losses.soft_ece, momentum=state), mix, original)
    assert state.mean.norm() > 0


def test_a_non_finite_gradient_freezes_all_further_updates() -> None:
    model, optimizer = setup()
    training_step(model, optimizer, Objective(main_loss), inputs(0), None)
    before, momentum = flat(model), optimizer.state[model[1].weight]["momentum_buffer"].clone()
    bad = inputs(1)
    bad.images[0, 0, 0, 0] = float("nan")
    for batch in (bad, inputs(2)):  # the second is sound, but comes after
        training_step(model, optimizer, Objective(main_loss), batch, None)
        assert optimizer.found_inf == 1
        assert torch.equal(flat(model), before)
        assert torch.equal(optimizer.state[model[1].weight]["momentum_buffer"], momentum)


def test_a_mixed_image_counts_for_both_classes() -> None:
    logits = 5 * torch.eye(4)
    targets, partners = torch.tensor([0, 1, 0, 0]), torch.tensor([3, 1, 2, 0])
    mix = Inputs(torch.zeros(4, 3, 1, 1), targets, torch.zeros(4, dtype=torch.bool), partners, torch.tensor(0.75))
    assert count_correct(logits, mix).item() == pytest.approx(0.75 * 2 + 0.25 * 2)


def with_views(seed: int) -> Inputs:
    plain = inputs(seed)
    generator = torch.Generator().manual_seed(100 + seed)
    views = torch.randn(2 * len(plain.images), 3, 4, 4, generator=generator, dtype=torch.float64)
    return Inputs(torch.cat([plain.images, views]), plain.targets, plain.filtered)


def augmix_objective(logits: torch.Tensor, mix: Inputs) -> torch.Tensor:
    return augmix_loss(MAIN, logits, mix.targets)


def test_views_count_once_in_a_summed_loss() -> None:
    model, optimizer = setup()
    mix, before = with_views(0), flat(model)
    expected = gradient(model, augmix_loss(MAIN, model(mix.images), mix.targets))
    training_step(model, optimizer, Objective(augmix_objective, sum_reduction=True), mix, None)
    torch.testing.assert_close(flat(model), before - 0.1 * len(mix.targets) * expected)


def test_a_shared_constraint_and_the_accuracy_see_the_images_themselves() -> None:
    model, optimizer = setup()
    mix, before = with_views(0), flat(model)
    logits = model(mix.images)
    clean = logits[: len(mix.targets)]
    constraint = losses.soft_ece(clean, mix.targets, mask=~mix.filtered)
    expected = gradient(model, augmix_loss(MAIN, logits, mix.targets) + constraint)
    report = training_step(model, optimizer, Objective(augmix_objective, losses.soft_ece, rule=add), mix, None)
    torch.testing.assert_close(flat(model), before - 0.1 * expected)
    assert report.correct == (clean.argmax(1) == mix.targets).sum()
