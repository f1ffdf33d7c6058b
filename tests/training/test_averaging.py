"""The average of weights: its formula, batch-norm's statistics, and what a checkpoint keeps of it."""

import pytest
import torch
from torch import nn

from shiftcal import data
from shiftcal._errors import CheckpointError
from shiftcal.experiments.config import load_config
from shiftcal.experiments.setup import set_up
from shiftcal.training import averaging
from shiftcal.training.averaging import WeightAverage


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def walk(model: nn.Module, average: WeightAverage, steps: int, seed: int = 1) -> list[torch.Tensor]:
    """Change the weights at random, and return those of the last layer after each step."""
    generator, seen = torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        with torch.no_grad():
            for p in model.parameters():
                p += torch.randn(p.shape, generator=generator)
        average.update()
        seen.append(model[4].weight.detach().clone())
    return seen


@pytest.mark.parametrize("decay", [0.999, 0.3])
def test_is_the_formula_with_a_decay_that_rises(decay: float) -> None:
    model = network()
    mean = model[4].weight.detach().double()
    average = WeightAverage(model, decay)
    for t, weight in enumerate(walk(model, average, 30), start=1):
        d = min(decay, (1 + t) / (10 + t))
        mean = d * mean + (1 - d) * weight.double()
    averaged = average.averaged(model, [torch.zeros(2, 3, 8, 8)])
    assert torch.allclose(averaged[4].weight.double(), mean, atol=1e-5)
    assert not torch.allclose(averaged[4].weight, model[4].weight, atol=0.1)


def test_statistics_of_batch_norm_are_those_of_the_averaged_weights() -> None:
    model = network()
    average = WeightAverage(model, 0.9)
    walk(model, average, 5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = [torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    averaged = average.averaged(model, iter(batches))
    with torch.no_grad():
        seen = [averaged[0](batch) for batch in batches]
    mean = torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0)
    variance = torch.stack([x.var((0, 2, 3)) for x in seen]).mean(0)
    assert torch.allclose(averaged[1].running_mean, mean, atol=1e-6)
    assert torch.allclose(averaged[1].running_var, variance, atol=1e-5)
    assert averaged[1].momentum == model[1].momentum == 0.1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items()), "the model stays"


def test_a_checkpoint_continues_it() -> None:
    model = network()
    whole = WeightAverage(model)
    walk(model, whole, 4)
    state = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    resumed = WeightAverage(model)
    resumed.load_state_dict(state)
    for average in (whole, resumed):
        average.update()
    assert all(
        torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True)
    )


def test_a_checkpoint_without_an_average_is_refused_where_one_is_kept() -> None:
    dataset = data.load("shapes", train=64, validation=16, test=16)
    kept = set_up(load_config("demo", ["method=dfl+view", "train.epochs=1"]), dataset).state
    saved = set_up(load_config("demo", ["method=dfl+view", "train.keep=last"]), dataset).state.state_dict()
    with pytest.raises(CheckpointError, match="with an average of the weights, which this run keeps"):
        kept.load_state_dict(saved, [])


def test_it_follows_a_model_that_changes_its_precision() -> None:
    model = network()
    average = WeightAverage(model, decay=0.5)
    model.double()  # gives every parameter other storage
    weights = [w.double() for w in walk(model, average, 40)]
    assert all(tensor.dtype == torch.float64 for name, tensor in average.state_dict().items() if name[0].isdigit())
    averaged = average.averaged(model, [torch.zeros(2, 3, 8, 8, dtype=torch.float64)])
    expected = sum(0.5 ** (k + 1) * w for k, w in enumerate(reversed(weights)))
    torch.testing.assert_close(averaged[4].weight.detach(), expected, atol=1e-6, rtol=0)


def test_frozen_parameters_have_no_average() -> None:
    model = network()
    model[0].requires_grad_(False)
    assert not any(name.startswith("0.") for name in WeightAverage(model).state_dict())


def test_layers_that_were_frozen_stay_in_evaluation_mode() -> None:
    model = network().train()
    model[1].eval()
    averaged = WeightAverage(model).averaged(model, [torch.randn(4, 3, 8, 8)])
    assert [module.training for module in averaged.modules()] == [module.training for module in model.modules()]


@pytest.mark.parametrize("all_frozen", [True, False])
@pytest.mark.parametrize("resumed", [True, False])
def test_statistics_of_frozen_layers_stay(all_frozen: bool, resumed: bool) -> None:
    """Layers in evaluation mode while training; when the average is taken, the whole model may be."""
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    average = WeightAverage(model, 0.9)
    model[0].eval()
    model[2].train(not all_frozen)
    for layer in (model[0], model[2]):
        layer.running_mean.fill_(7)
    average.update()
    if resumed:
        state, average = average.state_dict(), WeightAverage(model, 0.9)
        average.load_state_dict(state)
    averaged = average.averaged(model.eval(), [torch.randn(16, 3, 8, 8)])
    assert averaged[0].running_mean.tolist() == [7] * 3
    assert (averaged[2].running_mean.tolist() == [7] * 4) is all_frozen


@pytest.mark.parametrize("evaluated", [True, False])
def test_without_a_step_layers_tell_by_their_mode_what_is_frozen(evaluated: bool) -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(192, 5)).train()
    model[0].eval().running_mean.fill_(7)
    model.training = not evaluated  # a whole model in evaluation mode was put there to be evaluated
    averaged = WeightAverage(model).averaged(model, [torch.randn(16, 3, 8, 8)])
    assert (averaged[0].running_mean.tolist() == [7] * 3) is not evaluated


def test_a_state_with_other_layers_changes_nothing() -> None:
    """The same parameters, but a layer of statistics more."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    average, other = WeightAverage(model), WeightAverage(nn.Sequential(model[0], nn.Identity(), model[2]))
    average.update()
    with torch.no_grad():
        model[2].weight.add_(1)
    other.update()
    before = other.state_dict()
    with pytest.raises(ValueError, match=r"`state` should be one of 1 batch-norm layers\. Found `state = 2 layers`"):
        other.load_state_dict(average.state_dict())
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


def test_half_precision_has_means_that_move() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    average = WeightAverage(model, 0.999)
    with torch.no_grad():
        model.weight.fill_(1)
    for _ in range(9000):
        average.update()  # the decay has come to 0.999
    with torch.no_grad():
        model.weight.fill_(1.25)
    for _ in range(1000):
        average.update()
    averaged = average.averaged(model, ())
    assert averaged.weight.dtype == torch.bfloat16
    assert averaged.weight.item() == pytest.approx(1.25 - 0.25 * 0.999**1000, abs=0.005)


@pytest.mark.parametrize("wrapped", ["average", "averaged"])
def test_wrapped_models_and_pairs_of_images_and_targets(wrapped: str) -> None:
    model = network()
    compiled = torch.compile(model, backend="eager")
    average = WeightAverage(compiled if wrapped == "average" else model, 0.9)
    walk(model, average, 3)
    batch = torch.randn(16, 3, 8, 8)
    averaged = average.averaged(compiled if wrapped == "averaged" else model, [(batch, torch.zeros(16))])
    expected = average.averaged(model, [batch])
    assert all(torch.equal(a, b) for a, b in zip(averaged.buffers(), expected.buffers(), strict=True))


def test_a_layer_named_module_keeps_its_name() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    average = WeightAverage(torch.compile(Inner(), backend="eager"))
    assert {"module.weight", "module.bias"} < average.state_dict().keys()


def test_another_model_and_another_state_are_refused() -> None:
    average = WeightAverage(network())
    with pytest.raises(ValueError, match=r"`model` should be the one that was averaged.*Linear without 0.weight"):
        average.averaged(nn.Linear(3, 3), ())
    with pytest.raises(ValueError, match="`state` should be that of an average of the same parameters"):
        average.load_state_dict(WeightAverage(nn.Linear(3, 3)).state_dict())
    with pytest.raises(ValueError, match="one with other too"):
        average.load_state_dict(average.state_dict() | {"other": torch.zeros(1)})
    state = average.state_dict()
    with pytest.raises(ValueError, match=r"`state` should be one where 4.bias has shape \[5\]"):
        average.load_state_dict(state | {"4.bias": torch.zeros(6)})


def test_an_average_without_images_for_batch_norm_or_without_parameters_is_refused() -> None:
    model = network()
    with pytest.raises(ValueError, match="`batches` should be at least one"):
        WeightAverage(model).averaged(model, iter(()))
    with pytest.raises(ValueError, match="`model` should be one with parameters that are trained"):
        WeightAverage(nn.ReLU())


def test_the_decay_is_checked() -> None:
    with pytest.raises(ValueError, match=r"`decay` should be in \[0, 1\)"):
        WeightAverage(network(), 1.0)


def test_statistics_of_the_average_are_those_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[nn.Module] = []
    monkeypatch.setattr(averaging, "average_statistics", calls.append)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    averaged = WeightAverage(model).averaged(model, [torch.randn(8, 3, 2, 2)])
    assert calls == [averaged]
