"""The engine where there is no GPU: sums, precision, and which batches go through a compiled model."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from shiftcal import data, losses
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.run import train
from shiftcal.experiments.setup import load_dataset
from shiftcal.gradients.rules import Rectification
from shiftcal.methods import METHODS
from shiftcal.training import engine
from shiftcal.training.engine import compile as compile_module
from shiftcal.training.engine.precision import Autocast, uses_bfloat16
from shiftcal.training.inputs import Inputs
from shiftcal.training.objective import Objective
from shiftcal.training.optimizer import make_optimizer
from shiftcal.training.settings import EngineSettings, TrainSettings
from shiftcal.training.step import StepReport
from shiftcal.training.totals import Totals

SIZES = ["data.train=100", "data.validation=24", "data.test=24", "train.epochs=2", "train.batch_size=32"]


def config(*words: str) -> Config:
    return load_config("demo", ["method=ce", *SIZES, *words])


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    return load_dataset(config())


def report(loss: float, correct: int, conflict: bool, cosine: float, skipped: bool) -> StepReport:
    one, flag = torch.tensor(1.0), torch.tensor
    parts = Rectification(flag(conflict), torch.tensor(cosine), one, one, flag(skipped))
    return StepReport(torch.tensor(loss), torch.tensor(correct), one, parts)


def test_sums_over_steps_of_different_sizes() -> None:
    frozen = torch.tensor(0.0)
    totals = Totals(frozen)
    totals.reset(constrained=True)
    totals.add(report(2.0, 3, True, 0.5, False), 4)
    frozen.fill_(1)
    totals.add(report(1.0, 1, False, -0.1, True), 2)
    assert totals.read() == {
        "loss": pytest.approx((2.0 * 4 + 1.0 * 2) / 6),
        "accuracy": pytest.approx(4 / 6),
        "steps": 2,
        "good_steps": 1,
        "conflict_rate": 0.5,
        "mean_cosine": pytest.approx(0.2),
        "skipped": 1,
    }
    state = totals.state().clone()
    assert totals.peek() == totals.read()
    totals.reset(constrained=False)
    totals.restore(state)
    assert totals.read().keys() == {"loss", "accuracy", "steps", "good_steps"}


def test_precision() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [uses_bfloat16(p, cpu) for p in ("auto", "fp32", "bf16")] == [False, False, True]
    assert [uses_bfloat16(p, cuda) for p in ("auto", "fp32", "bf16")] == [True, False, True]
    layer = torch.nn.Linear(4, 3)
    seen = []
    layer.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    assert Autocast(layer)(torch.randn(2, 4)).dtype == torch.float32
    assert seen == [torch.bfloat16]
    assert layer.weight.dtype == torch.float32


def test_half_precision_trains_and_is_recorded(dataset: data.Dataset) -> None:
    runs = [train(config(f"engine.precision={p}"), dataset, progress=False) for p in ("fp32", "bf16")]
    assert [run.state.engine["precision"] for run in runs] == ["fp32", "bf16"]
    a, b = (torch.cat([p.detach().flatten() for p in run.model.parameters()]) for run in runs)
    assert 0 < (a - b).norm() < 0.1 * a.norm()
    assert b.dtype == torch.float32


class Marked(torch.nn.Module):
    """Stands for the compiled model and remembers the sizes of its batches."""

    sizes: ClassVar[list[int]] = []

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(images))
        return self.model(images)


def test_whole_batches_go_through_what_is_compiled(
    dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, int]] = []

    def remembers(function: Callable[..., Any]) -> Callable[..., Any]:
        def marked(*arguments: Any) -> Any:
            sizes = [len(a.targets) for a in arguments if isinstance(a, Inputs)]
            calls.append((function.__name__, sizes[0] if sizes else 0))
            return function(*arguments)

        return marked

    monkeypatch.setattr(compile_module, "_compiled", remembers)
    monkeypatch.setattr(engine, "compiled_model", Marked)
    run = train(config("engine.compile=on", "method=fgr", "train.start=0.5"), dataset)
    assert capsys.readouterr().out.count("Steps are compiled: ") == 1, "so that nobody takes the first for stuck"
    assert calls == [("gradients_of", 32), ("combine", 0)] * 6, "three whole batches an epoch, of four"
    assert run.state.engine == {"precision": "fp32", "captured": False, "compiled": True}
    calls.clear()
    assert train(config(), dataset).state.engine["compiled"] is False
    assert "compiled" not in capsys.readouterr().out
    assert train(config("engine.compile=off"), dataset, progress=False).state.engine["compiled"] is False
    assert calls == []


QUICK = ("ce", "fgr-released", "fgr-ema")


@pytest.mark.parametrize(
    ("backend", "methods", "distance"),
    [
        ("aot_eager", QUICK, 1e-6),
        pytest.param("aot_eager", sorted(METHODS.keys() - set(QUICK)), 1e-6, marks=pytest.mark.slow),
        pytest.param("inductor", ["fgr-shared"], 1e-2, marks=pytest.mark.slow),
    ],
    ids=["quick", "all", "inductor"],
)
def test_steps_are_traced_whole_and_stay_the_same(backend: str, methods: Sequence[str], distance: float) -> None:
    command = [sys.executable, str(Path(__file__).with_name("compiled_runs.py")), backend, *methods]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not compiled" not in done.stdout, "all of them as a whole, however many runs there were before"
    for method, found in json.loads(done.stdout.splitlines()[-1]).items():
        assert found["compiled"] == [False, True], f"{method}: {done.stdout}"
        assert found["distance"] < distance, method
        assert found["losses"][1] == pytest.approx(found["losses"][0], rel=10 * distance), method
        assert found["conflicts"][1] == found["conflicts"][0], method


def test_with_an_earlier_torch_the_model_alone_is_compiled(
    dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_module, "_TRACES_GRADIENTS", "a setting that is not there")
    monkeypatch.setattr(engine, "compiled_model", Marked)
    Marked.sizes.clear()
    assert train(config("engine.compile=on"), dataset, progress=False).state.engine["compiled"] is True
    assert Marked.sizes == [32] * 6


@pytest.mark.parametrize(
    "kind", [torch._dynamo.exc.InternalTorchDynamoError, torch._dynamo.exc.FailOnRecompileLimitHit]
)
def test_steps_that_cannot_be_compiled_are_done_all_the_same(
    kind: type[Exception], dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: Callable[..., Any]) -> Callable[..., Any]:
        def raising(*_: Any) -> None:
            raise kind("cannot trace this\nat all")

        return raising

    class BrokenModel(Marked):
        def forward(self, _: torch.Tensor) -> torch.Tensor:
            raise kind("nor that")

    monkeypatch.setattr(compile_module, "_compiled", broken)
    monkeypatch.setattr(engine, "compiled_model", Marked)
    Marked.sizes.clear()
    run = train(config("engine.compile=on"), dataset)
    said = "Steps are not compiled as a whole, the model alone is: cannot trace this  "
    assert capsys.readouterr().out.count(said) == 1
    assert run.state.engine["compiled"] is True
    assert Marked.sizes == [32] * 6
    monkeypatch.setattr(engine, "compiled_model", BrokenModel)
    run = train(config("engine.compile=on"), dataset)
    out = capsys.readouterr().out
    assert out.count(said) == 1
    assert out.count("Steps are not compiled as a whole, nothing is: nor that") == 1
    assert run.state.engine["compiled"] is False


def test_what_a_model_of_its_own_compilation_raises_is_raised(
    dataset: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object, __: object) -> None:
        raise torch._dynamo.exc.InternalTorchDynamoError("compiled by its owner")

    monkeypatch.setattr("shiftcal.training.engine.precision.Autocast.forward", broken)
    with pytest.raises(torch._dynamo.exc.InternalTorchDynamoError, match="compiled by its owner"):
        train(config("engine.precision=bf16"), dataset, progress=False)


def test_a_step_is_whole_where_both_batches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def inputs(n: int) -> Inputs:
        return Inputs(torch.zeros(n, 2), torch.arange(n) % 2, torch.zeros(n, dtype=torch.bool))

    model = torch.nn.Linear(2, 2)
    made = engine.Engine(model, make_optimizer(TrainSettings(), model), EngineSettings(), step_size=4)
    seen: list[bool] = []
    monkeypatch.setattr(made, "_execute", lambda *_, whole: seen.append(whole))
    objective = Objective(main=lambda logits, batch: losses.cross_entropy(logits, batch.targets))
    for mix, original in ((4, None), (4, 4), (4, 3), (3, 4), (3, None)):
        made.step(objective, inputs(mix), None if original is None else inputs(original))
    assert seen == [True, True, False, False, False]
