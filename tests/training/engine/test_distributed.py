"""Several processes against one: global-batch semantics, sharded evaluation, and a process that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from stand_ins import write_class_folders

from shiftcal import _distributed
from shiftcal.experiments import run as run_module
from shiftcal.experiments.config import load_config
from shiftcal.experiments.interrupt import Interrupt
from shiftcal.experiments.run import train
from shiftcal.records import read_record
from shiftcal.training.engine import distributed
from shiftcal.training.engine.distributed import Buckets, ShardedOps

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from distributed_runs import CASES, STREAMED, run_all

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}


def torchrun(processes: int, *words: str, restarts: int = 0) -> list[str]:
    options = ["--standalone", "--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    return [sys.executable, "-m", "torch.distributed.run", *options, *words]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    write_class_folders(root, 8, 15, size=(32, 32))  # 96 train: the last batch, of one, is one process's
    return root


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, object]:
    return run_all(str(folder))


@pytest.fixture(scope="module", params=[2, 4])
def together(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, folder: Path
) -> dict[str, object]:
    out = tmp_path_factory.mktemp("ranks") / "found.pt"
    command = torchrun(request.param, str(HERE / "distributed_runs.py"), str(out), str(folder))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out, weights_only=True)


@pytest.mark.slow
def test_weights_are_those_of_one_process(alone: dict[str, object], together: dict[str, object]) -> None:
    for name in (*CASES, *STREAMED):
        for key, expected in alone[name]["weights"].items():
            torch.testing.assert_close(together[name]["weights"][key], expected, rtol=1e-5, atol=1e-5, msg=name)
        assert together[name]["losses"] == pytest.approx(alone[name]["losses"], rel=1e-4), name
        assert together[name]["validation"] == pytest.approx(alone[name]["validation"], rel=1e-4), name
    # The mean over all rows is the mean of the means over equal parts of them; batches of 50 leave parts of 12 and 13.
    mean = alone["statistics"]["mean"]
    torch.testing.assert_close(together["statistics"]["mean"], mean, rtol=0, atol=float(0.03 * mean.abs().max()))
    # A part's variance is a little smaller than that of the whole.
    torch.testing.assert_close(
        together["statistics"]["variance"], alone["statistics"]["variance"], rtol=0.15, atol=1e-3
    )
    assert "`train.sync_batch_norm` should be false for several ranks without GPUs" in together["statistics"]["refused"]
    assert together["evaluation"] == pytest.approx(alone["evaluation"], rel=1e-4)


class Reductions:
    """Stands in for another rank with the same gradients, and notes what had been found when a bucket was sent."""

    def __init__(self) -> None:
        self.sizes, self.early, self.waited, self.first_found = [], [], 0, False

    def __call__(self, part: torch.Tensor, *, async_op: bool) -> "Reductions":
        assert async_op
        self.sizes.append(len(part))
        self.early.append(not self.first_found)
        part.mul_(2)
        return self

    def wait(self) -> None:
        self.waited += 1


def test_gradients_are_reduced_while_the_backward_pass_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [torch.nn.Linear(3, 4, bias=False), torch.nn.Tanh(), torch.nn.Linear(4, 5), torch.nn.Linear(5, 2)]
    model, unused = torch.nn.Sequential(*layers), torch.nn.Parameter(torch.ones(7))
    parameters = list(model.parameters())
    images = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(model(images).square().sum(), parameters)])
    reductions = Reductions()
    monkeypatch.setattr(distributed.dist, "all_reduce", reductions)
    layers[0].weight.register_hook(lambda _: setattr(reductions, "first_found", True))
    gradients = Buckets(parameters, size=40).backward(model(images).square().sum())
    assert reductions.sizes == [2 + 10, 5 + 20, 12]
    assert reductions.early == [True, True, False], "the last layers' gradients leave before the first layer's is there"
    torch.testing.assert_close(gradients.flat, 2 * expected)
    assert all(p.grad is None for p in parameters)
    assert not layers[0].weight._post_accumulate_grad_hooks, "the next backward pass is left alone"
    ops = ShardedOps(overlap=True)
    ops._under_way = [reductions] * 3
    assert ops.all_reduce(gradients) is gradients
    assert reductions.waited == 3
    reductions.first_found = False
    gradients = Buckets([*parameters, unused], size=40).backward(model(images).square().sum())
    assert sum(reductions.sizes[3:]) == len(expected) + 7
    assert not any(reductions.early[3:]), "all wait for a gradient that never comes, since their order is that of all"
    assert gradients.used == (True,) * 5 + (False,)


def test_a_run_goes_on_where_all_processes_see_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkpoints" / "epoch-0003").mkdir(parents=True)
    others, waited = ["epoch-0002", "epoch-0003"], []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(_distributed, "all_gather_object", lambda own: [own, others.pop(0)])
    run_module._check_shared(tmp_path)
    assert waited == [1], "another machine saw the last checkpoint late"
    others += ["nothing"] * 30
    seen = r"with epoch-0003 \(rank 0\), nothing \(rank 1\)"
    with pytest.raises(ValueError, match=rf"`out` should be a directory that all ranks see, .*{seen}"):
        run_module._check_shared(tmp_path)
    (tmp_path / "record.json").touch()
    others.append("record.json")
    run_module._check_shared(tmp_path)


def test_a_run_starts_only_where_all_processes_see_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_PATIENCE", 1)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(_distributed, "all_gather_object", lambda own: [own, "epoch-0003"])
    with pytest.raises(ValueError, match=r"`out` should be a directory that all ranks see"):
        run_module.complete(load_config("demo", ["data.train=100"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_first_process_alone_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_distributed, "rank", lambda: 1)
    words = ["data.train=64", "data.validation=16", "data.test=16", "train.epochs=1", "evaluation.batch_size=8"]
    train(load_config("demo", words), checkpoints=tmp_path / "run" / "checkpoints", progress=False)
    assert not (tmp_path / "run").exists()


def test_processes_leave_when_the_first_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(_distributed, "barrier", lambda: waited.append(True))
    with pytest.raises(KeyboardInterrupt):
        Interrupt().leave()
    assert waited == [True]


def test_rows_are_shared_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for world in (1, 2, 3, 4):
        monkeypatch.setattr(_distributed, "world_size", lambda world=world: world)
        for count in (0, 1, 2, 3, 7, 16):
            taken = []
            for rank in range(world):
                monkeypatch.setattr(_distributed, "rank", lambda rank=rank: rank)
                taken += list(range(count))[_distributed.local_rows(count)]
            assert taken == list(range(count))
            assert max(_distributed.shard_sizes(count)) - min(_distributed.shard_sizes(count)) <= 1


def test_processes_meet_those_of_their_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    store = torch.distributed.HashStore()
    starts = []
    for _ in range(2):  # the second start finds what the first has left behind
        with ThreadPoolExecutor(3) as pool:
            met = [pool.submit(_distributed._fresh_prefix, store, number, 3) for number in (0, 1)]
            time.sleep(0.05)  # the last comes late: in the second start its old greeting has been answered by then
            met.append(pool.submit(_distributed._fresh_prefix, store, 2, 3))
            starts.append([future.result(timeout=20) for future in met])
    for name, parts in zip(("old", "new"), starts, strict=True):
        parts[0].set("address", name)
    for name, parts in zip(("old", "new"), starts, strict=True):
        assert [part.get("address") for part in parts] == [name.encode()] * 3
    monkeypatch.setattr(_distributed, "_TIMEOUT", timedelta(seconds=0.1))
    with pytest.raises(TimeoutError, match=r"Ranks \[1, 2\] of 3 did not join"):
        _distributed._fresh_prefix(store, 0, 3)


WORDS = ["data.train=400", "data.validation=40", "data.test=40", "train.epochs=12", "train.batch_size=16"]
WORDS += ["method=fgr", "train.start=0.5", "evaluation.corruptions=[]", "train.model=distributed_runs:make"]
OPTIONS = [word for item in WORDS for word in ("--set", item)]


@pytest.mark.slow
def test_a_process_that_dies_is_started_again_and_the_run_ends_the_same(tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    command = ["-m", "shiftcal", "train", "demo", *OPTIONS]
    whole = subprocess.run(
        [*torchrun(2), *command, "--out", str(tmp_path / "whole")],
        capture_output=True, text=True, check=False, timeout=300, env=environment,
    )  # fmt: skip
    assert whole.returncode == 0, whole.stderr[-3000:]
    assert whole.stdout.count("fgr  epoch 3/12") == 1, "the first process speaks, the other is silent"
    process = subprocess.Popen(
        [*torchrun(2, restarts=2), *command, "--out", str(tmp_path / "killed")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("checkpoints/epoch-0002*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(_a_worker_of(process.pid), signal.SIGKILL)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr[-3000:]
    first, second = (json.loads((tmp_path / name / "record.json").read_text()) for name in ("whole", "killed"))
    assert [entry["loss"] for entry in first["history"]] == [entry["loss"] for entry in second["history"]]
    assert first["device"]["processes"] == 2
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]


def _a_worker_of(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(children[-1])


def test_several_processes_ask_one_another_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = [0.0], [None]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(_distributed, "world_size", lambda: 2)
    slower = 2.0  # the other process takes twice as long
    monkeypatch.setattr(_distributed, "all_gather_object", lambda own: [own, (asked[0], slower * own[1])])
    interrupt = Interrupt()
    times = []
    for step in range(1, 200):
        clock[0] += 0.125 if step < 100 else 4.0
        before = interrupt._since
        assert not interrupt.after_step()
        if interrupt._since != before:
            times.append(step)
    assert times[:5] == [1, 21, 41, 61, 81], "5 s are 20 steps of the slower one"
    assert times[5:9] == [101, 105, 106, 107], "then every step"
    asked[0] = signal.SIGTERM
    clock[0] += 4.0
    assert interrupt.after_step()
    assert interrupt.asked == signal.SIGTERM, "all know what the other was told"


def test_a_signal_that_comes_while_processes_ask_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt = Interrupt()

    def gather(own: tuple[int | None, float]) -> list[tuple[int | None, float]]:
        interrupt._ask(signal.SIGTERM, None)
        return [own, own]

    monkeypatch.setattr(_distributed, "all_gather_object", gather)
    assert not interrupt.now(), "the other process has not been told"
    assert interrupt.now()
    assert interrupt.asked == signal.SIGTERM


@pytest.mark.slow
def test_a_grid_in_several_processes(tmp_path: Path) -> None:
    words = ["data.train=40", "data.validation=20", "data.test=20", "train.epochs=2", "train.batch_size=10"]
    options = [word for item in (*words, "evaluation.corruptions=[]") for word in ("--set", item)]
    for methods in ("ce", "ce,fgr,rect-only"):
        command = [*torchrun(2), "-m", "shiftcal", "bench", "demo", *options, "--methods", methods]
        command += ["--out", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("| fgr |") == 2, "both tables, once"
    assert (tmp_path / "report.html").is_file()
    history = read_record(tmp_path / "rect-only-0" / "record.json").history
    assert [epoch.trained_by for epoch in history] == ["fgr-0", None], "it continues from the other's warm-up"


@pytest.mark.slow
def test_several_processes_stop_within_an_epoch_and_go_on(tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}"}
    options = [*OPTIONS, "--set", "data.train=3000", "--set", "train.epochs=2", "--set", "train.batch_size=9"]
    options += ["--set", "train.model=distributed_runs:make_dropping"]  # batches of 9: processes draw unequal numbers
    command = [*torchrun(2), "-m", "shiftcal", "train", "demo", *options]
    whole = subprocess.run(
        [*command, "--out", str(tmp_path / "whole")],
        capture_output=True, text=True, check=False, timeout=300, env=environment,
    )  # fmt: skip
    assert whole.returncode == 0, whole.stderr[-3000:]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "stopped")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list((tmp_path / "stopped").glob("checkpoints/epoch-0001*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=60)
    assert stderr.count("Stopped. Last checkpoint: ") == 1, "the first speaks for all"
    assert "Continue with: torchrun … -m shiftcal train demo " in stderr
    assert list((tmp_path / "stopped").glob("checkpoints/epoch-0001-step-*")), "334 steps an epoch, ten seconds"
    again = subprocess.run(
        [*command, "--out", str(tmp_path / "stopped"), "--resume"],
        capture_output=True, text=True, check=False, timeout=300, env=environment,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr[-3000:]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert weights[0] == weights[1]


def test_statistics_of_batch_norm_are_means_over_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(2))
    monkeypatch.setattr(_distributed, "world_size", lambda: 2)
    monkeypatch.setattr(_distributed, "all_reduce", lambda tensor: tensor.add_(1.0))  # the other rank's half
    model[0].running_mean.fill_(4.0)
    model[1].running_var.fill_(6.0)
    distributed.average_statistics(model)
    assert model[0].running_mean.tolist() == [3.0] * 3  # (4 + 2) / 2
    assert model[1].running_var.tolist() == [4.0] * 2
