"""FGR as its authors released it: each difference from the paper's, against formulas in float64 NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from shiftcal import GradientPair, data, dct_low_pass, losses, rectified_backward
from shiftcal.augment import crop_flip
from shiftcal.data.epoch import MixedEpoch, seeded
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.setup import load_dataset, set_up
from shiftcal.filtering import LowPassPolicy
from shiftcal.methods import LowPass

TINY = ["data.train=128", "data.validation=64", "data.test=64", "train.epochs=4", "train.batch_size=32"]


def config(*overrides: str) -> Config:
    return load_config("demo", [*TINY, *overrides])


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    return load_dataset(config())


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def numeric_gradient(function: object, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    gradient = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        gradient[place] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return gradient


def released_loss(z: np.ndarray, y: np.ndarray, gamma: float) -> float:
    p = softmax(z)
    others = p.copy()
    others[np.arange(len(y)), y] = -1
    p_y = p[np.arange(len(y)), y]
    return float(np.mean(-((1 - p_y + others.max(1)) ** gamma) * np.log(p_y)))


def released_soft_ece(z: np.ndarray, y: np.ndarray) -> float:
    p = softmax(z)
    c, a = p.max(1), (p.argmax(1) == y).astype(float)
    u = np.exp(-((c[:, None] - np.linspace(0, 1, 15)) ** 2) / 0.1)
    u /= u.sum(1, keepdims=True)
    mass = u.sum(0)
    gap = (u * a[:, None]).sum(0) / mass - (u * c[:, None]).sum(0) / mass
    return float(np.sqrt((mass / len(y) * gap**2).sum()))


@pytest.mark.parametrize("seed", range(6))
def test_a_released_step_is_its_formula(seed: int) -> None:
    """Features through a hidden layer and a classifier, of which only the classifier is rectified."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    hidden, classifier = nn.Linear(6, 5).double(), nn.Linear(5, 4).double()
    x = torch.randn(24, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (24,), generator=generator)
    filtered = torch.rand(24, generator=generator) < 0.3
    h = hidden(x).tanh()
    logits = classifier(h)
    main = losses.dual_focal(logits, y, gamma=5.0, runner_up="incorrect")
    constraint = losses.soft_ece(logits, y, centres="ends", mask=~filtered)
    parameters = [*hidden.parameters(), *classifier.parameters()]
    report = rectified_backward(main, constraint, parameters, constrained=classifier.parameters())

    w, b, f = classifier.weight.detach().numpy(), classifier.bias.detach().numpy(), h.detach().numpy()
    theta, labels, kept = np.concatenate([w.ravel(), b]), y.numpy(), (~filtered).numpy()

    def scores(theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return f[rows] @ theta[:20].reshape(4, 5).T + theta[20:]

    every = np.ones(24, dtype=bool)
    g = numeric_gradient(lambda t: released_loss(scores(t, every), labels, 5.0), theta)
    k = numeric_gradient(lambda t: released_soft_ece(scores(t, kept), labels[kept]), theta)
    d = g @ k
    expected = g if d >= 0 else g - d / (k @ k + 1e-12) * k
    ours = torch.cat([classifier.weight.grad.flatten(), classifier.bias.grad])
    assert bool(report.conflict) == (d < 0)
    assert report.cosine.item() == pytest.approx(d / np.linalg.norm(g) / np.linalg.norm(k), abs=1e-5)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-5, atol=1e-7)
    (plain,) = torch.autograd.grad(
        losses.dual_focal(classifier(hidden(x).tanh()), y, gamma=5.0, runner_up="incorrect"), [hidden.weight]
    )
    assert torch.equal(hidden.weight.grad, plain), "the rest keeps the main gradient"


class Counted(torch.autograd.Function):
    """The identity; counts its backward passes."""

    count = 0

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        Counted.count += 1
        return gradient


@pytest.mark.parametrize(("scope", "passes"), [("classifier", 1), ("all", 2)])
def test_the_constraints_backward_pass_stops_at_the_classifier(scope: str, passes: int) -> None:
    torch.manual_seed(0)
    hidden, classifier = nn.Linear(6, 5), nn.Linear(5, 4)
    y = torch.arange(8) % 4
    logits = classifier(Counted.apply(hidden(torch.randn(8, 6))))
    Counted.count = 0
    rectified_backward(
        losses.cross_entropy(logits, y),
        losses.soft_ece(logits, y),
        [*hidden.parameters(), *classifier.parameters()],
        constrained=classifier.parameters() if scope == "classifier" else None,
    )
    assert Counted.count == passes


@pytest.mark.parametrize("parts", [1, 3])
def test_what_no_rule_sees_is_as_backward_leaves_it(parts: int) -> None:
    """Summed over micro-batches, added to what is there, and without a gradient where no loss depends on it."""
    torch.manual_seed(0)
    hidden, unused, classifier = nn.Linear(6, 5), nn.Linear(2, 2), nn.Linear(5, 4)
    parameters = [*hidden.parameters(), *unused.parameters(), *classifier.parameters()]
    x, y = torch.randn(12, 6), torch.arange(12) % 4

    def main_loss(k: int) -> torch.Tensor:
        return losses.cross_entropy(classifier(hidden(x[k::parts]).tanh()), y[k::parts]) / parts

    for k in range(parts):
        main_loss(k).backward()
    expected = 1 + hidden.weight.grad
    hidden.weight.grad = torch.ones_like(hidden.weight)
    pair = GradientPair(parameters, constrained=classifier.parameters())
    for k in range(parts):
        pair.add(main_loss(k), -classifier.weight.sum() / parts)
    pair.backward()
    torch.testing.assert_close(hidden.weight.grad, expected)
    assert unused.weight.grad is None


def test_gradients_share_no_memory_with_what_a_hook_holds() -> None:
    hidden, classifier = nn.Linear(3, 2), nn.Linear(2, 2)
    seen: list[torch.Tensor] = []
    hidden.weight.register_hook(seen.append)
    logits = classifier(hidden(torch.ones(2, 3)))
    parameters = [*hidden.parameters(), *classifier.parameters()]
    rectified_backward(logits.square().sum(), logits.sum(), parameters, constrained=classifier.parameters())
    before = seen[0].clone()
    hidden.weight.grad.zero_()
    assert before.abs().sum() > 0
    assert torch.equal(seen[0], before)


def test_constrained_parameters_are_some_of_all() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="`constrained` should be some of `parameters` that require a gradient"):
        rectified_backward(a.sum(), a.sum(), [a], constrained=[b])


def test_the_share_may_be_drawn_once_with_new_strengths(dataset: data.Dataset) -> None:
    def epoch(number: int, redraw: bool) -> MixedEpoch:
        policy = LowPassPolicy(0.25, redraw=redraw)
        return MixedEpoch(dataset.train, policy=policy, seed=0, epoch=number)

    assert torch.equal(epoch(1, redraw=False).filtered, epoch(2, redraw=False).filtered)
    assert not torch.equal(epoch(1, redraw=True).filtered, epoch(2, redraw=True).filtered)
    chosen = epoch(1, redraw=False).filtered
    one, other = (epoch(number, redraw=False).strengths[chosen] for number in (1, 2))
    assert not torch.equal(one, other)
    assert set(one.tolist()) == {15.0, 18.0, 25.0}


def test_the_filter_comes_after_crop_and_flip(dataset: data.Dataset) -> None:
    words = ["method=filter-only", "filter.qualities=[15]", "filter.after_augment=true", "filter.ratio=0.25"]
    task = set_up(config(*words), dataset).task
    epoch = task.epoch(3)
    index, batch = epoch.indices(32)[0], next(epoch.batches(32))
    chosen, stored = batch.filtered, dataset.train.images
    assert 0 < chosen.sum() < 32
    cropped = torch.empty_like(stored)
    cropped[epoch.chosen] = crop_flip(stored[epoch.chosen], seeded(0, 3, "augment before filter", torch.device("cpu")))
    assert torch.equal(batch.images[chosen], dct_low_pass(cropped[index][chosen], 15))
    assert torch.equal(batch.images[~chosen], stored[index][~chosen])
    inputs = task.prepare(batch, torch.Generator().manual_seed(0), None)
    once = crop_flip(batch.images, torch.Generator().manual_seed(0))
    once[chosen] = batch.images[chosen]  # not a second time
    assert torch.equal(inputs.images, dataset.preprocess(once))
    assert not torch.equal(epoch.chosen.sort()[0], torch.arange(len(epoch.chosen)))


def test_levels_are_truncated_between_crop_and_filter(dataset: data.Dataset) -> None:
    words = ["method=filter-only-released", "filter.qualities=[15]", "filter.ratio=0.25"]
    images = dataset.train.images[:8]
    task = set_up(config(*words), dataset).task
    made = task.policy.prepared(images, torch.full((8,), 15.0), torch.Generator().manual_seed(1))
    levels = dataset.preprocess.truncated(crop_flip(images, torch.Generator().manual_seed(1)))
    assert torch.equal(made, dct_low_pass(levels, 15, subsampling="4:2:0"))
    plain = set_up(config("method=filter-only", "filter.qualities=[15]"), dataset).task
    assert plain.policy.before is None
    assert next(plain.epoch(3).batches(32)).augmented is None
    assert next(task.epoch(0).batches(32)).augmented is None, "nothing is filtered in the warm-up"


def test_truncation_is_what_normalising_and_cutting_does(dataset: data.Dataset) -> None:
    levels = torch.arange(256, dtype=torch.uint8).repeat(3, 1).view(1, 3, 16, 16)
    ours = dataset.preprocess.truncated(levels)
    mean, std = (
        np.array(v, dtype=np.float32)[:, None, None] for v in (dataset.preprocess.mean, dataset.preprocess.std)
    )
    values = (levels[0].numpy().astype(np.float32) / np.float32(255) - mean) / std
    expected = (np.clip(values * std + mean, 0, 1) * np.float32(255)).astype(np.uint8)
    assert np.array_equal(ours[0].numpy(), expected)
    lost = (levels.int() - ours.int()).flatten()
    assert set(lost.tolist()) == {0, 1}


def test_released_rows_differ_from_the_papers_in_what_they_say() -> None:
    row = config("method=fgr-released").row
    assert (row.loss.runner_up, row.loss.gamma, row.weights) == ("incorrect", "released", "best_ece")
    assert (row.constraint.batch, row.constraint.scope, row.constraint.centres) == ("shared", "classifier", "ends")
    low_pass = row.low_pass
    assert (low_pass.subsampling, low_pass.redraw, low_pass.after_augment, low_pass.truncate) == (
        "4:2:0",
        False,
        True,
        True,
    )
    assert config("method=fgr-released-all").row.constraint.scope == "all"
    assert config("method=filter-only-released").row.constraint is None
    assert config("method=dfl-released").row.low_pass is None
    words = [
        "constraint.scope=all",
        "constraint.centres=midpoints",
        "gamma.runner_up=below",
        "filter.subsampling=4:4:4",
    ]
    words += ["filter.redraw=true", "filter.after_augment=false", "filter.truncate=false"]
    changed = config("method=fgr-released", "train.keep=last", *words).row
    assert changed.low_pass == LowPass()
    assert (changed.loss.runner_up, changed.constraint.scope, changed.weights) == ("below", "all", "last")
    assert config("method=ce", "gamma.runner_up=incorrect").row.loss.runner_up is None


def test_bins_are_for_soft_ece_alone(dataset: data.Dataset) -> None:
    with pytest.raises(ValueError, match=r"`constraint.centres` should be left out for mmce, which has no bins"):
        set_up(config("method=fgr-mmce", "constraint.centres=ends"), dataset)


def test_levels_are_truncated_by_their_own_channel() -> None:
    own = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    levels = torch.arange(256, dtype=torch.uint8).repeat(3, 1).view(1, 3, 16, 16)
    mean, std = (torch.tensor(values)[:, None, None] for values in (own.mean, own.std))
    values = (levels.float() / 255 - mean) / std
    assert torch.equal(own.truncated(levels), ((values * std + mean).clamp(0, 1) * 255).to(torch.uint8))
