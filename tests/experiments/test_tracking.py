"""Logs of a run: files always, TensorBoard and Weights & Biases on request."""

import csv
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from shiftcal import data
from shiftcal.cli import app
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.run import complete, train
from shiftcal.experiments.tracking import evaluated
from shiftcal.records import read_record

SIZES = ["data.train=100", "data.validation=24", "data.test=24", "train.epochs=3", "train.batch_size=32"]


def config(*words: str) -> Config:
    return load_config("demo", ["method=fgr", "train.start=0.34", *SIZES, *words])


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    return data.load("shapes", train=100, validation=24, test=24)


def test_files_hold_every_epoch_once_also_after_a_resume(dataset: data.Dataset, tmp_path: Path) -> None:
    for resume in (False, True):
        if resume:  # the last epoch again
            last = tmp_path / "checkpoints" / "epoch-0003"
            for file in last.iterdir():
                file.unlink()
            last.rmdir()
        run = train(config(), dataset, checkpoints=tmp_path / "checkpoints", resume=resume, progress=False)
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [line["epoch"] for line in lines] == [1, 2, 3]
        wanted = {
            "loss",
            "accuracy",
            "validation_ece",
            "validation_confidence",
            "learning_rate",
            "images_per_second",
            "memory",
        }
        assert all(wanted <= line.keys() for line in lines)
        assert {"conflict_rate", "mean_cosine"} <= lines[-1].keys()
        assert lines[-1]["validation_ece"] == run.history[-1]["validation"]["ece"]
        with (tmp_path / "log.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [float(row["loss"]) for row in rows] == [line["loss"] for line in lines]
        assert rows[0]["conflict_rate"] == "", "the warm-up has none"


def test_tensorboard(dataset: data.Dataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = config('train.track=["tensorboard"]')
    run = train(settings, dataset, checkpoints=tmp_path / "checkpoints", progress=False)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx([e["loss"] for e in run.history])
    assert [event.step for event in events.Scalars("validation_ece")] == [1, 2, 3]


@pytest.mark.filterwarnings("ignore")  # its own
@pytest.mark.slow
def test_wandb_offline(dataset: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train(config('train.track=["wandb"]'), dataset, checkpoints=tmp_path / "checkpoints", progress=False)
    wandb.teardown()  # its service closes the file after finish() has returned; the end of a process waits for it too
    runs = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(runs) == 1
    assert b"validation_ece" in runs[0].read_bytes()


def test_wandb_is_told_each_epoch_under_its_number_and_the_end(
    dataset: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    asked: list[str | None] = []

    def init(**options: Any) -> Any:
        asked.append(options["id"])
        return SimpleNamespace(id="a1", log=lambda _, step: told.append(step), finish=lambda: told.append("end"))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    settings = config('train.track=["wandb"]')
    train(settings, dataset, checkpoints=tmp_path / "checkpoints", progress=False)
    assert told == [*range(1, settings.train.epochs + 1), "end"]
    train(settings, dataset, checkpoints=tmp_path / "checkpoints", resume=True, progress=False)
    assert asked == [None, "a1"], "a resumed run continues in the same one"
    told.clear()
    broken = config('train.track=["wandb"]', "method=ce", "train.learning_rate=1e30", "train.warmup=0.0")
    with pytest.raises(FloatingPointError):
        train(broken, dataset, checkpoints=tmp_path / "broken" / "checkpoints", progress=False)
    assert told[-1] == "end"


TINY = ["data.train=64", "data.validation=32", "data.test=32", "train.epochs=2", "method=ce"]
TINY += ['evaluation.corruptions=["contrast"]']


def tracked(name: str, out: Path, *words: str) -> Path:
    """Train by the command line with a tracker."""
    options = [word for item in (*TINY, f'train.track=["{name}"]') for word in ("--set", item)]
    result = CliRunner().invoke(app, ["train", "demo", *options, "--out", str(out), *words])
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture
def local_mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow that keeps to this machine's files."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return mlflow


def only_run(mlflow: Any, out: Path) -> tuple[Any, Any]:
    client = mlflow.MlflowClient(tracking_uri=(out / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("shiftcal").experiment_id])
    return client, run


@pytest.mark.filterwarnings("ignore")  # its own
def test_mlflow_gets_epochs_evaluation_figures_and_the_page(local_mlflow: Any, tmp_path: Path) -> None:
    out = tracked("mlflow", tmp_path / "run")
    record = read_record(out / "record.json")
    client, run = only_run(local_mlflow, out)
    assert run.info.status == "FINISHED"
    assert (run.data.params["method"], run.data.params["train.epochs"]) == ("ce", "2")
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(e.epoch, pytest.approx(e.loss)) for e in record.history]
    for name, value in evaluated(record).items():
        assert run.data.metrics[name] == pytest.approx(value), name
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"report.html", "reliability.png", "severity.png", "table.md"} <= names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_resumed_run_is_one_run_of_mlflow(local_mlflow: Any, tmp_path: Path) -> None:
    out = tracked("mlflow", tmp_path / "run")
    (out / "record.json").unlink()
    shutil.rmtree(out / "checkpoints" / "epoch-0002")
    tracked("mlflow", out, "--resume")
    client, run = only_run(local_mlflow, out)
    assert [m.step for m in client.get_metric_history(run.info.run_id, "loss")] == [1, 2, 2]
    (out / "mlflow.json").write_text(json.dumps({"run_id": "0" * 32}))  # one that is gone is begun anew
    (out / "record.json").unlink()
    shutil.rmtree(out / "checkpoints" / "epoch-0002")
    tracked("mlflow", out, "--resume")
    assert len(client.search_runs([run.info.experiment_id])) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_tracker_that_fails_later_does_not_stop_the_run(
    local_mlflow: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise local_mlflow.exceptions.MlflowException("the server is gone")

    log_batch = local_mlflow.MlflowClient.log_batch

    def log(self: Any, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        gone() if metrics else log_batch(self, run_id, params=params)

    monkeypatch.setattr(local_mlflow.MlflowClient, "log_batch", log)
    settings = load_config("demo", [*TINY, 'train.track=["mlflow"]'])
    assert len(complete(settings, tmp_path / "run").history) == 2
    told = capsys.readouterr().out
    assert "the log could not be written, training continues without it: MLflow: the server is gone" in told
    assert "the trackers could not be told of the evaluation: MLflow: the server is gone" in told


def test_tensorboard_gets_the_evaluation_figures_and_tables(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tracked("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    for name, value in evaluated(read_record(out / "record.json")).items():
        assert [(e.step, e.value) for e in events.Scalars(name)] == [(2, pytest.approx(value, rel=1e-5))]
    assert {"reliability", "severity"} <= set(events.Tags()["images"])
    assert "table/text_summary" in events.Tags()["tensors"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_wandb_gets_the_evaluation_figures_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    out = tracked("wandb", tmp_path / "run")
    wandb.teardown()
    (run,) = (out / "wandb").glob("offline-run-*")
    assert b"evaluation/shifted/ece" in next(run.glob("*.wandb")).read_bytes()
    names = {path.name.partition("_")[0] for path in (run / "files" / "media").rglob("*") if path.is_file()}
    assert {"reliability", "severity", "report"} <= names


def test_unknown_and_missing_trackers(dataset: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"`train.track` should be of tensorboard, wandb, mlflow. Found"):
        train(config('train.track=["wandb2"]'), dataset, checkpoints=tmp_path, progress=False)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"of installed trackers .pip install 'shiftcal\[tracking\]'"):
        train(config('train.track=["wandb"]'), dataset, checkpoints=tmp_path, progress=False)
