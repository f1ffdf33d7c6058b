"""What must hold on a GPU. Skipped where there is none."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from shiftcal import CORRUPTIONS, EXTRA_CORRUPTIONS, ConstraintMomentum, corrupt, data, dct_low_pass, losses, metrics
from shiftcal.auditing.audit import Images, audit
from shiftcal.augment import OPERATIONS, augmix
from shiftcal.experiments.config import load_config
from shiftcal.experiments.run import train
from shiftcal.experiments.setup import load_dataset, set_up
from shiftcal.methods import METHODS
from shiftcal.models import build
from shiftcal.records import load_records
from shiftcal.training.inputs import Inputs
from shiftcal.training.loop import fit
from shiftcal.training.objective import Objective
from shiftcal.training.step import training_step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
FGR = partial(Objective, lambda logits, mix: losses.dual_focal(logits, mix.targets, gamma=2.0), losses.soft_ece)


def images(n: int = 256) -> torch.Tensor:
    return data.load("shapes", train=n, validation=8, test=8).train.images


def inputs(seed: int) -> Inputs:
    generator = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(64, 3, 32, 32, device="cuda", generator=generator, dtype=torch.float64)
    y = torch.randint(0, 8, (64,), device="cuda", generator=generator)
    return Inputs(x, y, torch.arange(64, device="cuda") % 8 == 0)


def setup() -> tuple[torch.nn.Module, torch.optim.SGD]:
    torch.manual_seed(0)
    model = build("small", num_classes=8).double().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    optimizer.found_inf = torch.zeros((), device="cuda")
    return model, optimizer


def test_filter_and_corruptions_are_those_of_the_cpu() -> None:
    x = images()
    quality = torch.tensor([15, 18, 25, 50]).repeat(64)
    difference = dct_low_pass(x.cuda(), quality.cuda()).cpu().float() - dct_low_pass(x, quality).float()
    assert difference.abs().mean() < 0.01
    for name in CORRUPTIONS + EXTRA_CORRUPTIONS:
        difference = corrupt(x.cuda(), name, 3).cpu().float() - corrupt(x, name, 3).float()
        assert difference.abs().mean() < 0.02, name


def test_metrics_are_those_of_the_cpu() -> None:
    p, y = torch.randn(500, 8).softmax(-1), torch.arange(500) % 8
    for name in ("ece", "mce", "classwise_ece", "adaptive_ece", "smooth_ece", "nll", "brier", "accuracy"):
        metric = getattr(metrics, name)
        assert metric(p.cuda(), y.cuda()) == pytest.approx(metric(p, y), rel=1e-9)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("method", METHODS)
def test_no_step_waits_for_the_device(method: str) -> None:
    sizes = ["data.train=500", "data.validation=40", "data.test=40", "device=cuda", "train.clip_norm=2.0"]
    config = load_config("demo", [f"method={method}", *sizes])
    setup_ = set_up(config, load_dataset(config))
    state, task = setup_.state, setup_.task
    generators = [torch.Generator("cuda").manual_seed(seed) for seed in range(3)]

    def step() -> None:
        mix = task.prepare(batch, generators[0], generators[1])
        constraint = task.method.constraint
        independent = constraint is not None and constraint.batch == "independent"
        original = task.prepare(batch, generators[2], None) if independent else None
        training_step(state.model, state.optimizer, state.full, mix, original)

    batch = next(task.epoch(config.train.epochs).batches(64))
    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("shared", [True, False])
def test_a_step_can_be_captured_in_a_graph(shared: bool) -> None:
    mix, original = inputs(0), None if shared else inputs(1)
    eager, optimizer = setup()
    objective = FGR(momentum=ConstraintMomentum(0.9))
    for _ in range(6):
        training_step(eager, optimizer, objective, mix, original)

    captured, optimizer = setup()
    objective = FGR(momentum=ConstraintMomentum(0.9))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            training_step(captured, optimizer, objective, mix, original)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training_step(captured, optimizer, objective, mix, original)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(eager.parameters(), captured.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_augmix_is_that_of_the_cpu() -> None:
    x = images()
    for name, operation in OPERATIONS.items():
        magnitude = torch.full((len(x),), 3.0)
        difference = operation(x.cuda(), magnitude.cuda()).cpu().float() - operation(x, magnitude).float()
        assert difference.abs().mean() < 0.01, name
    generator = torch.Generator("cuda").manual_seed(0)
    distances = [(augmix(y, g, views=8) - y).square().mean().item() for y, g in ((x, None), (x.cuda(), generator))]
    assert distances[0] == pytest.approx(distances[1], rel=0.1)


def test_an_audit_is_that_of_the_cpu() -> None:
    dataset = data.load("shapes", train=8, validation=200, test=200)
    torch.manual_seed(0)
    model = build("small", len(dataset.classes))

    def audited(device: str) -> dict:
        test, validation = (split.to(device) for split in (dataset.test, dataset.validation))
        given = Images("shapes", dataset.classes, test, validation)
        found = audit(
            model.to(device), given, preprocess=dataset.preprocess, corruptions=("contrast", "pixelate"), progress=False
        )
        return {"accuracy": found.shifted.accuracy, "ece": found.shifted.ece, "nll": found.shifted.nll}

    assert audited("cuda") == pytest.approx(audited("cpu"), abs=5e-3)


def test_a_run_on_the_gpu_learns() -> None:
    sizes = ["data.train=1000", "data.validation=100", "data.test=100", "train.epochs=6", "device=cuda"]
    history = train(load_config("demo", ["method=fgr", *sizes]), progress=False).history
    assert history[-1]["loss"] < history[0]["loss"]
    assert "conflict_rate" in history[-1]


@pytest.mark.parametrize(
    "words",
    [
        "sgd ce",
        "sgd fgr",
        "sgd fgr-shared",
        "sgd fgr-ema",
        "sgd fgr+mixup",
        "sgd augmix",
        "sgd fgr-released",
        "adam fgr",
        "adamw fgr",
    ],
)
def test_captured_steps_train_as_eager_ones(words: str) -> None:
    optimizer, method = words.split()
    rate = 0.05 if optimizer == "sgd" else 0.001
    sizes = [
        "data.train=700",
        "data.validation=40",
        "data.test=40",
        "device=cuda",
        "train.epochs=3",
        "train.start=0.34",
        "train.keep=average",
    ]
    keys = [f"method={method}", f"train.optimizer={optimizer}", f"train.learning_rate={rate}", "engine.precision=fp32"]
    torch.backends.cudnn.deterministic = True
    try:
        runs = [
            train(load_config("demo", [*sizes, *keys, f"engine.capture={capture}"]), progress=False)
            for capture in ("off", "auto")
        ]
    finally:
        torch.backends.cudnn.deterministic = False
    for eager, captured in zip(runs[0].history, runs[1].history, strict=True):
        for key in ("loss", "accuracy", "learning_rate"):
            assert captured[key] == pytest.approx(eager[key], rel=2e-2), (key, eager, captured)
    a, b = (torch.cat([p.detach().flatten() for p in run.model.parameters()]) for run in runs)
    assert (a - b).norm() < 0.02 * a.norm()


def test_a_model_that_cannot_be_captured_trains_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    class Waits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build("small", 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * min(1.0, 1.0 + abs(x.sum().item()))

    sizes = ["data.train=700", "data.validation=40", "data.test=40", "device=cuda", "train.epochs=6", "method=fgr"]
    config = load_config("demo", sizes)
    prepared = set_up(config, load_dataset(config), Waits())
    history = fit(prepared.state, prepared.task).history
    assert "Steps are not captured in a CUDA graph: " in capsys.readouterr().out
    assert history[-1]["loss"] < history[0]["loss"]


def test_half_precision_and_compilation_train_too(tmp_path: Path) -> None:
    # A process of its own: the compiler cannot trace the tests' checks of annotations.
    sizes = ["data.train=1000", "data.validation=100", "data.test=100", "train.epochs=6", "device=cuda"]
    words = [word for item in ("method=fgr-shared", "engine.compile=on", *sizes) for word in ("--set", item)]
    command = [sys.executable, "-m", "shiftcal", "train", "demo", *words, "--out", tmp_path / "run"]
    subprocess.run(command, check=True)
    (record,) = load_records(tmp_path)
    engine, history = record.engine, record.history
    assert (engine["precision"], engine["captured"], engine["compiled"]) == ("bf16", True, True)
    assert history[-1].loss < history[0].loss
    assert all(entry.conflict_rate is not None for entry in history if entry.active)


@pytest.mark.parametrize("method", ["fgr", "fgr+augmix"])
def test_deterministic_runs_are_the_same(method: str, tmp_path: Path) -> None:
    # Processes of their own: cuBLAS wants to be told before it starts.
    sizes = ["data.train=700", "data.validation=40", "data.test=40", "train.epochs=3", "train.start=0.5"]
    words = [word for item in (f"method={method}", "device=cuda", *sizes) for word in ("--set", item)]
    for name in ("one", "two"):
        command = [
            sys.executable,
            "-m",
            "shiftcal",
            "train",
            "demo",
            *words,
            "--deterministic",
            "--out",
            tmp_path / name,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
