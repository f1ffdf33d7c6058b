"""Micro-batches: gradients averaged, and rectified once or one by one."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shiftcal import data, losses
from shiftcal.experiments.config import load_config
from shiftcal.gradients import Gradients, constrained_first, gradients_of_losses, rectify, write_gradients
from shiftcal.training.accumulate import accumulated, micro_batches
from shiftcal.training.inputs import Inputs
from shiftcal.training.objective import Objective
from shiftcal.training.step import EAGER, training_step

sys.path.insert(0, str(Path(__file__).parent / "engine"))
from distributed_runs import Plain
from running import run_with

SIZES = ["data.train=150", "data.validation=37", "data.test=45", "train.epochs=2", "train.start=0.5"]


def weights(*words: str) -> torch.Tensor:
    config = load_config("demo", [*SIZES, "filter.ratio=0.2", *words])
    torch.manual_seed(0)
    dataset = data.load("shapes", train=150, validation=37, test=45)
    state = run_with(config, dataset, Plain()).state
    assert len(state.history) == 2
    return torch.cat([p.detach().flatten() for p in state.model.parameters()])


@pytest.mark.parametrize("words", ["ce", "dfl", "fgr-brier", "mixup", "ce train.loss_reduction=sum"])
def test_two_halves_are_the_whole_where_losses_are_means(words: str) -> None:
    """150 images: the last step has 22, a micro-batch of 16 and one of 6."""
    method, *others = words.split()
    keys = [f"method={method}", *others, *(["train.learning_rate=0.001"] if others else [])]
    whole = weights(*keys, "train.batch_size=32")
    halves = weights(*keys, "train.batch_size=16", "train.accumulate=2")
    torch.testing.assert_close(halves, whole, rtol=1e-4, atol=1e-5)


def test_a_statistic_of_the_batch_is_that_of_each_micro_batch() -> None:
    whole = weights("method=fgr", "train.batch_size=32")
    halves = weights("method=fgr", "train.batch_size=16", "train.accumulate=2")
    one_by_one = weights("method=fgr", "train.batch_size=16", "train.accumulate=2", "train.rectify_per=micro_batch")
    for a, b in ((whole, halves), (halves, one_by_one)):
        assert 1e-5 < (a - b).norm() < 0.1 * a.norm()


def inputs(n: int, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 3, 32, 32, generator=generator)
    return Inputs(images, torch.arange(n) % 8, torch.arange(n) % 5 == 0)


@pytest.mark.parametrize("scope", ["all", "classifier"])
@pytest.mark.parametrize("each", [False, True])
def test_what_a_step_does_with_three_micro_batches(each: bool, scope: str) -> None:
    """By hand: gradients of each part, weighted by its size, rectified before or after."""
    mix, original = inputs(20, 0), inputs(24, 1)
    torch.manual_seed(0)
    model = Plain()
    classifier = None if scope == "all" else tuple(model.layers[-1].parameters())
    parameters, count = constrained_first(model.parameters(), classifier)
    size = sum(p.numel() for p in parameters[:count])  # the rest keeps the main gradient
    total, rest = torch.zeros(2, size), torch.zeros(sum(p.numel() for p in parameters[count:]))
    bounds, others = (0, 8, 16, 20), (0, 8, 16, 24)
    cosine, conflicts = torch.nn.functional.cosine_similarity, []
    for k in range(3):
        a, b = slice(bounds[k], bounds[k + 1]), slice(others[k], others[k + 1])
        main_loss = losses.cross_entropy(model(mix.images[a]), mix.targets[a])
        constraint_loss = losses.soft_ece(model(original.images[b]), original.targets[b])
        main = torch.autograd.grad(main_loss, parameters)
        second = torch.autograd.grad(constraint_loss, parameters[:count])
        pair = torch.cat([g.flatten() for g in main[:count] + second]).view(2, size)
        conflicts.append(((a.stop - a.start) / 20, float(pair[0] @ pair[1] < 0), float(cosine(*pair, dim=0))))
        vectors = torch.stack([rectify(*pair), pair[1]]) if each else pair
        total += (a.stop - a.start) / 20 * vectors
        rest += (a.stop - a.start) / 20 * torch.cat([rest[:0], *(g.flatten() for g in main[count:])])
    expected = torch.cat([total[0] if each else rectify(*total), rest])
    optimizer = torch.optim.SGD(parameters, lr=0.0, fused=True)
    optimizer.found_inf = torch.zeros(())
    objective = Objective(
        lambda logits, part: losses.cross_entropy(logits, part.targets), losses.soft_ece, constrained=classifier
    )
    ops = accumulated(EAGER, 8, "micro_batch" if each else "batch")
    report = training_step(model, optimizer, objective, mix, original, ops)
    found = torch.cat([p.grad.flatten() for p in parameters])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert report.loss.item() == pytest.approx(losses.cross_entropy(model(mix.images), mix.targets).item(), rel=1e-5)
    assert report.correct.item() == (model(mix.images).argmax(1) == mix.targets).sum().item()
    if each:  # what is reported is what happened to each micro-batch, not what became of them
        assert report.rectification.conflict.item() == pytest.approx(sum(share * c for share, c, _ in conflicts))
        assert report.rectification.cosine.item() == pytest.approx(
            sum(share * c for share, _, c in conflicts), abs=1e-5
        )
    else:
        assert report.rectification.cosine.item() == pytest.approx(float(cosine(*total, dim=0)), abs=1e-5)


def test_parts_keep_augmixs_views_together() -> None:
    images = torch.arange(18.0).view(18, 1, 1, 1).expand(-1, 3, 2, 2)  # six images and two views of each
    mix = Inputs(images, torch.arange(6), torch.zeros(6, dtype=torch.bool))
    parts = [part.images[:, 0, 0, 0].tolist() for part, *_ in micro_batches(mix, None, 4)]
    assert parts == [[0, 1, 2, 3, 6, 7, 8, 9, 12, 13, 14, 15], [4, 5, 10, 11, 16, 17]]


def test_parts_are_the_whole_in_order() -> None:
    """A shared constraint masks by `filtered`, mixup's second targets are `partners`."""
    mix = inputs(11, 0)
    mix = replace(mix, partners=mix.targets.flip(0), share=torch.tensor(0.3))
    parts = [part for part, *_ in micro_batches(mix, None, 4)]
    assert [len(part.targets) for part in parts] == [4, 4, 3]
    for name in ("images", "targets", "filtered", "partners"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(mix, name)), name


def test_unused_parameters_stay_without_a_gradient() -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    pair: Gradients = gradients_of_losses(used.sum(), -used.sum(), [used, unused], 2).scale(0.5)
    total = pair.add(gradients_of_losses(used.sum(), -used.sum(), [used, unused], 2), 0.5)
    write_gradients(total.flat[: total.size], [used, unused], total.used)
    assert unused.grad is None
    assert used.grad is not None


def test_a_running_mean_cannot_be_taken_of_micro_batches() -> None:
    with pytest.raises(ValueError, match=r"`train.rectify_per` should be 'batch' with fgr-ema"):
        load_config("demo", ["method=fgr-ema", "train.rectify_per=micro_batch"])


def test_the_constraints_batch_is_cut_into_as_many_parts_of_about_one_size() -> None:
    """D_orig may be smaller than a step: no micro-batch is left without a constraint."""
    parts = [(len(a.targets), len(b.targets)) for a, b, _ in micro_batches(inputs(6, 0), inputs(4, 1), 2)]
    assert parts == [(2, 1), (2, 2), (2, 1)]
