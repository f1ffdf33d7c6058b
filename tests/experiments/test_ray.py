"""A grid on a local Ray instance, also with a worker that is lost."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from shiftcal.experiments import ray as on_ray
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.grid import complete_all
from shiftcal.experiments.run import complete

SIZES = ["data.train=160", "data.validation=40", "data.test=40", "train.batch_size=32", "evaluation.corruptions=[]"]


def config(*words: str) -> Config:
    return load_config("demo", [*SIZES, "train.epochs=3", *words])


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    source = str(Path(sys.modules["shiftcal"].__file__).parents[1])
    environment = {"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the workers: sums depend on it
    yield ray
    torch.set_num_threads(threads)
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ray's own
def test_a_grid_on_ray_is_that_of_this_process(ray: Any, tmp_path: Path) -> None:
    configs = {f"{m}-{s}": config(f"method={m}", f"seed={s}") for m in ("ce", "fgr") for s in (0, 1)}
    records = complete_all(configs, tmp_path / "ray", "ray")
    assert [(r.method, r.seed) for r in records] == [("ce", 0), ("ce", 1), ("fgr", 0), ("fgr", 1)]
    here = complete(configs["fgr-1"], tmp_path / "here", progress=False)
    losses = [[entry.loss for entry in record.history] for record in (here, records[3])]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    again = complete_all(configs, tmp_path / "ray", "ray")
    assert [r.started for r in again] == [r.started for r in records], "finished runs are kept"
    with pytest.raises(FloatingPointError, match=r"1 of 1 runs did not finish. bad: .*should be at least"):
        complete_all({"bad": config("method=ce", "data.train=4")}, tmp_path / "bad", "ray")
    diverging = {"a": config("train.learning_rate=1e30", "train.warmup=0.0"), "b": config("method=ce")}
    with pytest.raises(FloatingPointError, match=r"1 of 2 runs did not finish. a: The gradient of method"):
        complete_all(diverging, tmp_path / "diverging", "ray")
    assert (tmp_path / "diverging" / "b" / "record.json").is_file(), "the others do"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_lost_worker_is_replaced_and_the_run_goes_on(ray: Any, tmp_path: Path) -> None:
    settings = config("method=fgr", "train.epochs=60")
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not list(tmp_path.glob("ray/one/checkpoints/epoch-0003")):
            time.sleep(0.01)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if command.startswith(b"ray::_run"):
                os.kill(int(process.name), signal.SIGKILL)
                killed.append(int(process.name))

    thread = threading.Thread(target=kill)
    thread.start()
    (record,) = complete_all({"one": settings}, tmp_path / "ray", "ray")
    thread.join()
    assert killed
    assert len(record.history) == 60
    here = complete(settings, tmp_path / "here", progress=False)
    assert record.history[-1].loss == pytest.approx(here.history[-1].loss, rel=1e-6)


def test_an_unknown_engine_and_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"`engine` should be one of local, ray"):
        complete_all({"a": config()}, tmp_path, "slurm")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"`engine` should be .local., or ray installed .*shiftcal\[ray\]"):
        complete_all({"a": config()}, tmp_path, "ray")


@pytest.mark.usefixtures("unchecked")
def test_a_worker_keeps_the_memory_that_it_frees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(on_ray, "keep_freed_memory", lambda: done.append("memory"))
    monkeypatch.setattr(on_ray, "complete", lambda *_, **__: done.append("run"))
    on_ray._run(config().to_dict(), str(tmp_path), str(tmp_path))
    assert done == ["memory", "run"]
