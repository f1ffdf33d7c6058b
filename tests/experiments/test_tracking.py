"""Logs of a run: files always, TensorBoard and Weights & Biases on request."""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shiftcal import data
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.run import train

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
        wanted = {"loss", "accuracy", "validation_ece", "learning_rate", "images_per_second", "memory"}
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
    run = SimpleNamespace(log=lambda _, step: told.append(step), finish=lambda: told.append("end"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run))
    settings = config('train.track=["wandb"]')
    train(settings, dataset, checkpoints=tmp_path / "checkpoints", progress=False)
    assert told == [*range(1, settings.train.epochs + 1), "end"]
    told.clear()
    broken = config('train.track=["wandb"]', "method=ce", "train.learning_rate=1e30", "train.warmup=0.0")
    with pytest.raises(FloatingPointError):
        train(broken, dataset, checkpoints=tmp_path / "broken" / "checkpoints", progress=False)
    assert told[-1] == "end"


def test_unknown_and_missing_trackers(dataset: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"`train.track` should be of tensorboard, wandb. Found"):
        train(config('train.track=["wandb2"]'), dataset, checkpoints=tmp_path, progress=False)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"of installed trackers .pip install 'shiftcal\[tracking\]'"):
        train(config('train.track=["wandb"]'), dataset, checkpoints=tmp_path, progress=False)
