"""What calibrators do, beside the contract that all of them keep (tests/test_contract.py)."""

import copy
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression as SklearnIsotonic

from shiftcal import calibrators, metrics
from shiftcal.calibrators import HistogramBinning, IsotonicRegression, RhoNormScaling, TemperatureScaling, VectorScaling

ALL = [getattr(calibrators, name) for name in calibrators.__all__ if name not in ("load", "save")]
each = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


def overconfident(n: int = 3000, classes: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits three times too large: classes are drawn from the softmax of a third of them."""
    generator = torch.Generator().manual_seed(seed)
    honest = 1.5 * torch.randn(n, classes, generator=generator)
    return 3 * honest, torch.multinomial(honest.softmax(-1), 1, generator=generator).squeeze(1)


@each
def test_lowers_the_error_on_new_data(kind: type) -> None:
    calibrator = kind().fit(*overconfident(seed=0))
    logits, targets = overconfident(seed=1)
    before = metrics.ece(logits.softmax(-1), targets)
    after = metrics.ece(calibrator(logits).softmax(-1), targets)
    assert after < 0.35 * before


@each
def test_state_survives_and_is_a_copy(kind: type) -> None:
    logits, targets = overconfident()
    calibrator = kind().fit(logits, targets)
    state = calibrator.state_dict()
    loaded, inside = kind(), torch.nn.Sequential(torch.nn.Identity(), kind())
    assert loaded.load_state_dict(state).missing_keys == []
    inside.load_state_dict({f"1.{name}": tensor for name, tensor in state.items()})
    expected = calibrator(logits)
    assert torch.equal(loaded(logits), expected)
    assert torch.equal(inside(logits), expected)
    assert torch.equal(copy.deepcopy(calibrator)(logits), expected)
    for tensor in state.values():
        tensor.zero_()
    assert torch.equal(loaded(logits), expected)


@each
def test_whether_it_can_take_logarithms_of_probabilities_is_said(kind: type) -> None:
    logits, targets = overconfident()
    calibrator = kind().fit(logits, targets)
    same = torch.allclose(calibrator(logits).softmax(-1), calibrator(logits.log_softmax(-1)).softmax(-1), atol=1e-4)
    assert same == kind.shift_invariant


@each
def test_is_a_module_that_moves_with_its_model(kind: type) -> None:
    logits, targets = overconfident()
    calibrator = kind().fit(logits, targets)
    assert isinstance(calibrator, torch.nn.Module)
    assert list(calibrator.parameters()) == []
    model = torch.nn.Sequential(torch.nn.Linear(logits.shape[1], logits.shape[1]), calibrator).to("meta")
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert kind().state_dict() == {}, "nothing is fitted yet"
    again = calibrator.fit(logits[:200], targets[:200])
    assert again is calibrator


@each
def test_a_sample_does_not_depend_on_its_batch_or_on_autocast(kind: type) -> None:
    logits, targets = overconfident(n=300)
    calibrator = kind().fit(logits, targets)
    together = calibrator(logits)
    torch.testing.assert_close(torch.cat([calibrator(part) for part in logits.split(77)]), together)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(calibrator(logits), together)


@pytest.mark.parametrize("kind", [TemperatureScaling, RhoNormScaling], ids=lambda kind: kind.__name__)
def test_the_predicted_class_stays(kind: type) -> None:
    logits, targets = overconfident()
    assert torch.equal(kind().fit(logits, targets)(logits).argmax(1), logits.argmax(1))


def test_lbfgs_finds_what_the_grid_finds() -> None:
    logits, targets = overconfident()
    grid, exact = (TemperatureScaling(search=s).fit(logits, targets).temperature for s in ("grid", "lbfgs"))
    assert exact == pytest.approx(grid, abs=0.0051)
    assert exact > 0
    with pytest.raises(ValueError, match="`criterion` should be 'nll' with search 'lbfgs'"):
        TemperatureScaling("ece", search="lbfgs")


def test_lbfgs_stays_positive_for_a_model_that_is_always_wrong() -> None:
    logits = torch.eye(4).repeat(10, 1) * 5
    assert TemperatureScaling(search="lbfgs").fit(logits, (torch.arange(40) + 1) % 4).temperature > 0


def test_vector_scaling_recovers_weights_and_biases() -> None:
    generator = torch.Generator().manual_seed(3)
    honest = 1.5 * torch.randn(40000, 3, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(honest.softmax(-1), 1, generator=generator).squeeze(1)
    weight, bias = torch.tensor([0.5, 2.0, 1.0]), torch.tensor([0.3, -0.3, 0.0])
    state = VectorScaling().fit((honest - bias) / weight, targets).state_dict()
    torch.testing.assert_close(state["weight"], weight.double(), atol=0.07, rtol=0.07)
    shift = state["bias"] - state["bias"].mean()
    torch.testing.assert_close(shift, (bias - bias.mean()).double(), atol=0.07, rtol=0)


def test_rho_norm_is_its_formula_and_beats_a_temperature_on_its_own_model() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn(6000, 4, generator=generator) * torch.rand(6000, 1, generator=generator) * 12).double()
    honest = logits / (0.4 * logits.norm(dim=1, keepdim=True) + 0.5)
    targets = torch.multinomial(honest.softmax(-1), 1, generator=generator).squeeze(1)
    scaling = RhoNormScaling().fit(logits, targets)
    state = scaling.state_dict()
    norm = torch.linalg.vector_norm(logits, scaling.rho, dim=1, keepdim=True)
    torch.testing.assert_close(scaling(logits), logits / (state["gamma"] * norm + state["beta"]))
    temperature = TemperatureScaling(search="lbfgs").fit(logits, targets)
    ours, theirs = (metrics.nll(c(logits).softmax(-1), targets) for c in (scaling, temperature))
    assert ours < theirs - 0.005
    assert ours == pytest.approx(metrics.nll(honest.softmax(-1), targets), abs=0.002)


def test_histogram_binning_is_its_formula() -> None:
    logits, targets = overconfident(n=400)
    p, y = logits.double().softmax(-1).numpy(), targets.numpy()
    rates = np.zeros_like(p)
    for k in range(5):
        index = np.clip(np.ceil(p[:, k] * 10).astype(int) - 1, 0, 9)
        for m in set(index):
            rates[index == m, k] = (y[index == m] == k).mean()
    rates = np.maximum(rates, 1e-6)
    expected = rates / rates.sum(1, keepdims=True)
    ours = HistogramBinning(bins=10).fit(logits, targets)(logits.double()).softmax(-1)
    np.testing.assert_allclose(ours, expected, rtol=1e-9)
    with pytest.raises(ValueError, match="`bins` should be an integer"):
        HistogramBinning(bins=0)


def test_isotonic_is_scikit_learns() -> None:
    logits, targets = overconfident(n=400, seed=0)
    new, _ = overconfident(n=300, seed=1)
    p, q = (z.double().softmax(-1).numpy() for z in (logits, new))
    columns = [
        SklearnIsotonic(out_of_bounds="clip").fit(p[:, k], targets.numpy() == k).predict(q[:, k]) for k in range(5)
    ]
    scores = np.maximum(np.stack(columns, axis=1), 1e-6)
    ours = IsotonicRegression().fit(logits, targets)(new.double()).softmax(-1)
    np.testing.assert_allclose(ours, scores / scores.sum(1, keepdims=True), rtol=1e-6)


def test_infinite_norm_is_among_the_orders() -> None:
    assert math.inf in RhoNormScaling.NORMS


@each
def test_fits_where_gradients_are_switched_off_for_good(kind: type) -> None:
    logits, targets = overconfident(n=300)
    expected = kind().fit(logits, targets)(logits)
    with torch.inference_mode():
        assert torch.equal(kind().fit(logits + 0, targets)(logits), expected)


@each
def test_other_states_and_other_numbers_of_classes_are_refused(kind: type) -> None:
    logits, targets = overconfident(n=300)
    calibrator = kind().fit(logits, targets)
    with pytest.raises(ValueError, match=r"`logits` should be of 5 columns, as fitted. Found `logits = \[300, 4\]`"):
        calibrator(logits[:, :4])
    with pytest.raises(ValueError, match=f"`state` should be that of {kind.__name__}, with .* Found `state = .'other'"):
        calibrator.load_state_dict({"other": torch.ones(3)})
    assert torch.equal(calibrator(logits), kind().fit(logits, targets)(logits)), "and nothing has changed"


def test_a_temperature_can_be_set_by_hand() -> None:
    scaling = TemperatureScaling()
    scaling.load_state_dict({"t": torch.tensor(2.0)})
    assert scaling.temperature == 2.0
    assert torch.equal(scaling(torch.ones(1, 7)), torch.full((1, 7), 0.5))


MEASURED = """
import sys, torch
from shiftcal import _machine, calibrators
name, options, n, classes = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
make = lambda: getattr(calibrators, name)(**options)
torch.manual_seed(0)
make().fit(torch.randn(50, classes), torch.randint(classes, (50,)))  # what is loaded once
logits, targets = 3 * torch.randn(n, classes), torch.randint(classes, (n,))
before = _machine.peak_memory()
make().fit(logits, targets)
print((_machine.peak_memory() - before) / (4 * logits.numel()))
"""


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("TemperatureScaling", {}, (5_000, 100)),
        pytest.param("TemperatureScaling", {}, (10_000, 200), marks=pytest.mark.slow),
        pytest.param("TemperatureScaling", {"criterion": "ece"}, (100_000, 10), marks=pytest.mark.slow),
        pytest.param("TemperatureScaling", {"search": "lbfgs"}, (10_000, 200), marks=pytest.mark.slow),
        pytest.param("VectorScaling", {}, (10_000, 200), marks=pytest.mark.slow),
        pytest.param("RhoNormScaling", {}, (10_000, 200), marks=pytest.mark.slow),
        pytest.param("HistogramBinning", {}, (10_000, 200), marks=pytest.mark.slow),
        pytest.param("IsotonicRegression", {}, (10_000, 200), marks=pytest.mark.slow),
    ],
)
def test_fitting_takes_less_than_ten_times_its_data(name: str, options: dict[str, str], size: tuple[int, int]) -> None:
    """In a process of its own: the peak of memory, in units of the logits in float32."""
    words = [sys.executable, "-c", MEASURED, name, repr(options), *map(str, size)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert float(done.stdout) < 10


@each
def test_a_module_that_holds_an_unfitted_calibrator_can_be_loaded(kind: type[calibrators.TemperatureScaling]) -> None:
    model = torch.nn.ModuleDict({"calibrator": kind()})
    model.load_state_dict(model.state_dict())
    fitted = torch.nn.ModuleDict({"calibrator": kind().fit(*overconfident())})
    model.load_state_dict(fitted.state_dict())
    logits = overconfident(seed=1)[0]
    torch.testing.assert_close(model["calibrator"](logits), fitted["calibrator"](logits))
    with pytest.raises(ValueError, match=f"that of {kind.__name__}"):
        model.load_state_dict(fitted.state_dict() | {"calibrator.junk": torch.zeros(2)})


def test_the_temperature_is_the_one_in_the_buffer() -> None:
    scaling = TemperatureScaling().fit(*overconfident())
    scaling.t.fill_(2.0)
    assert scaling.temperature == 2.0


@each
def test_a_state_without_the_calibrator_does_not_take_away_what_was_fitted(kind: type) -> None:
    logits, targets = overconfident(200)
    model = torch.nn.Sequential(torch.nn.Identity(), kind().fit(logits, targets))
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})
    before = model(logits)
    model.load_state_dict({}, strict=False)
    assert torch.equal(model(logits), before)


@each
def test_a_calibrator_in_half_precision_still_calibrates(kind: type) -> None:
    logits, targets = overconfident(200)
    fitted = kind().fit(logits, targets)
    expected = fitted(logits).softmax(-1)
    torch.testing.assert_close(fitted.half()(logits).softmax(-1), expected, atol=0.02, rtol=0)
