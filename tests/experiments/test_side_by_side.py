"""Runs side by side, each in a process of its own."""

from pathlib import Path

import pytest

from shiftcal._errors import UnfinishedError
from shiftcal.experiments import side_by_side
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.grid import complete_all
from shiftcal.experiments.run import complete

SMALL = ["data.train=64", "data.validation=32", "data.test=32", "train.epochs=2", "evaluation.corruptions=[]"]


def config(*words: str) -> Config:
    return load_config("demo", [*SMALL, *words])


@pytest.mark.slow
def test_they_end_as_one_after_the_other_and_one_that_fails_stops_none(tmp_path: Path) -> None:
    configs = {f"ce-{seed}": config("method=ce", f"seed={seed}") for seed in range(2)}
    configs["bad-0"] = config("method=fgr", "train.learning_rate=1e30", "train.warmup=0.0")
    with pytest.raises(
        UnfinishedError, match=r"1 of 3 runs did not finish\. bad-0: The (gradient|logits) of method 'fgr'"
    ):
        complete_all(configs, tmp_path / "grid", workers=3)
    alone = complete(configs["ce-1"], tmp_path / "alone", progress=False)
    del configs["bad-0"]
    found = complete_all(configs, tmp_path / "grid2", workers=2)
    assert [record.seed for record in found] == [0, 1]
    assert found[1].evaluation.clean.n == alone.evaluation.clean.n
    assert (tmp_path / "grid" / "ce-1" / "record.json").is_file()
    again = complete_all(configs, tmp_path / "grid2", workers=2)  # finished runs are kept
    assert [record.started for record in again] == [record.started for record in found]


def test_workers_are_for_this_machine(tmp_path: Path) -> None:
    for workers, engine, message in ((0, "local", "an integer of at least 1"), (2, "ray", "1 with another engine")):
        with pytest.raises(ValueError, match=f"`workers` should be {message}"):
            complete_all({"a": config()}, tmp_path, engine, workers=workers)


def test_the_gpu_is_shared_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(side_by_side.subprocess, "run", lambda *args, **_: calls.append(args))
    with side_by_side._shared_gpu():
        assert calls == []
