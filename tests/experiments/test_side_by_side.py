"""Runs side by side, each in a process of its own."""

from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shiftcal._errors import UnfinishedError
from shiftcal.experiments import grid, side_by_side
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


def test_whatever_fails_one_after_the_other_stops_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = grid.complete

    def failing(config: Config, *args: Any, **options: Any) -> Any:
        if config.seed == 0:
            raise OSError("no such disk")
        return real(config, *args, **options)

    monkeypatch.setattr(grid, "complete", failing)
    configs = {f"ce-{seed}": config("method=ce", f"seed={seed}") for seed in range(2)}
    with pytest.raises(UnfinishedError, match=r"1 of 2 runs did not finish\. ce-0: OSError: no such disk"):
        complete_all(configs, tmp_path)
    assert (tmp_path / "ce-1" / "record.json").is_file()


def test_a_report_that_a_kill_ended_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".cost.md.31508.tmp").write_text("half")
    grid.check_all({"ce-0": config("method=ce")}, tmp_path)
    (tmp_path / "cost.tmp").touch()
    with pytest.raises(ValueError, match=r"`out` should be new, or hold nothing but these runs.*cost\.tmp"):
        grid.check_all({"ce-0": config("method=ce")}, tmp_path)


def test_a_rank_that_fails_alone_ends_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranks are in the middle of the run: what this one did next would meet them there."""

    def failing(*_: Any, **__: Any) -> Any:
        raise OSError("no such disk")

    monkeypatch.setattr(grid, "complete", failing)
    monkeypatch.setattr(grid._distributed, "world_size", lambda: 2)
    with pytest.raises(OSError, match="no such disk"):
        complete_all({"ce-0": config("method=ce")}, tmp_path, share_warmup=False)


def test_workers_are_for_this_machine(tmp_path: Path) -> None:
    for workers, engine, message in ((0, "local", "an integer of at least 1"), (2, "ray", "1 with another engine")):
        with pytest.raises(ValueError, match=f"`workers` should be {message}"):
            complete_all({"a": config()}, tmp_path, engine, workers=workers)


def test_the_gpu_is_shared_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(side_by_side.subprocess, "run", lambda *args, **_: calls.append(args))
    with side_by_side._shared_gpu():
        assert calls == []


class Ended:
    """A run that has ended by the time anybody looks."""

    started: dict[str, list[str]]

    def __init__(self, name: str, config: Config, out: Path, workers: int, followers: Mapping[str, Config]) -> None:
        self.started[name] = list(followers)
        receiver, sender = Pipe(duplex=False)
        sender.close()
        self.handles, self.followers = [receiver], set(followers)
        self.process = SimpleNamespace(is_alive=lambda: False)

    def listen(self) -> None: ...

    def reason(self) -> str:
        return "ended"


@pytest.mark.parametrize(("share", "followers"), [(True, ["rect-only"]), (False, [])])
def test_followers_are_those_that_wait_unless_nothing_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: bool, followers: list[str]
) -> None:
    monkeypatch.setattr(side_by_side, "_Run", Ended)
    monkeypatch.setattr(Ended, "started", {}, raising=False)
    configs = {name: config(f"method={name}") for name in ("fgr", "rect-only", "ce")}
    with pytest.raises(UnfinishedError):
        complete_all(configs, tmp_path, workers=2, share_warmup=share)
    order = ["fgr", "ce", "rect-only"] if share else list(configs)
    assert list(Ended.started) == order, "one that waits for a warm-up lets others go first"
    assert Ended.started["fgr"] == followers


@pytest.mark.usefixtures("unchecked")
def test_a_run_tells_that_it_has_handed_over_and_why_it_failed() -> None:
    run: Any = object.__new__(side_by_side._Run)
    run._receiver, sender = Pipe(duplex=False)
    run._reason, run._open, run.followers = None, True, {"rect-only"}
    run.process = SimpleNamespace(sentinel=7, exitcode=1, join=lambda: None)
    run.listen()
    assert run.followers == {"rect-only"}
    assert run.handles == [7, run._receiver]
    sender.send(None)
    run.listen()
    assert run.followers == set()
    sender.send("it diverged")
    sender.close()
    assert run.reason() == "it diverged"
    assert run.handles == [7], "nothing more is to come"


def test_a_process_hands_over_and_then_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, sender = Pipe(duplex=False)
    handed: list[object] = []
    monkeypatch.setattr(side_by_side, "hand_over", lambda *words, by: handed.append((*words, by, receiver.poll())))
    settings: list[object] = []

    def completing(*_: object, after_warmup: Callable[[Path], None], **__: object) -> None:
        settings.append("completed")
        after_warmup(tmp_path / "epoch-0001")

    monkeypatch.setattr(side_by_side, "complete", completing)
    monkeypatch.setattr(side_by_side.torch, "set_num_threads", settings.append)
    monkeypatch.setattr(side_by_side, "keep_freed_memory", lambda: settings.append("memory kept"))
    other = config("method=rect-only")
    side_by_side._complete(
        "fgr", config("method=fgr").to_dict(), str(tmp_path), 1, {"rect-only": other.to_dict()}, sender
    )
    assert handed == [(tmp_path / "epoch-0001", {"rect-only": other}, tmp_path, "fgr", False)]
    assert receiver.poll()
    assert receiver.recv() is None
    assert settings == [1, "memory kept", "completed"]
