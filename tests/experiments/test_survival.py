"""Checkpoints, interruptions and damage. Processes that are killed for good are in test_kill.py."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from running import finish, run_with, same_weights
from stand_ins import write_class_folders

from shiftcal import data
from shiftcal.auditing.grid import evaluate
from shiftcal.experiments import checkpoint, tracking
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.interrupt import Interrupt
from shiftcal.experiments.run import Trained, train
from shiftcal.experiments.saving import _SavingHooks, restore
from shiftcal.experiments.setup import Setup, load_dataset, set_up
from shiftcal.methods import METHODS
from shiftcal.training import loop
from shiftcal.training.state import TrainState

SIZES = ["data.train=200", "data.validation=40", "data.test=40", "train.epochs=4", "train.batch_size=32"]


def config(*words: str) -> Config:
    return load_config("demo", ["method=fgr", "filter.ratio=0.1", "train.start=0.25", *SIZES, *words])


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    return load_dataset(config())


def same(a: Trained, b: Trained) -> bool:
    return same_weights(a.model, b.model)


def losses(run: Trained) -> list[Any]:
    return [
        (entry["loss"], entry["accuracy"], entry.get("conflict_rate"), entry["validation"]) for entry in run.history
    ]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    step = loop.Engine.step

    def install(number_of_step: int, number: int) -> None:
        left = [number_of_step]

        def watched(*arguments: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), number)
                time.sleep(0.01)
            step(*arguments)

        monkeypatch.setattr(loop.Engine, "step", watched)

    return install


# At an epoch's last step and in the middle of the second; the others take as long again.
STEPS = [7, *(pytest.param(step, marks=pytest.mark.slow) for step in (1, 3, 10, 20))]


AUGMIX = pytest.param("fgr+augmix", marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ce", "fgr", "fgr-ema", "fgr-shared", "mixup", AUGMIX])
@pytest.mark.parametrize("step", STEPS)
def test_a_stopped_run_ends_as_one_never_stopped(
    method: str, step: int, dataset: data.Dataset, tmp_path: Path, stop_at: Callable[[int, int], None]
) -> None:
    """Seven steps an epoch: at the first, in the middle, at the last, and in the phase with the constraint."""
    settings = config(f"method={method}")
    whole = train(settings, dataset, progress=False)
    stop_at(step, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(settings, dataset, checkpoints=tmp_path, progress=False)
    at = checkpoint.name_of(step // 7, step % 7)
    assert names(tmp_path)[-1] == at or at in names(tmp_path)
    resumed = train(settings, dataset, checkpoints=tmp_path, resume=True, progress=False)
    assert same(whole, resumed)
    assert losses(resumed) == losses(whole)


HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_with_their_code_and_the_handlers_come_back(
    number: int, code: int, dataset: data.Dataset, tmp_path: Path, stop_at: Callable[[int, int], None]
) -> None:
    kept = signal.signal(number, signal.SIG_DFL)  # nohup lets SIGHUP be ignored
    before = [signal.getsignal(n) for n in HEARD]
    stop_at(4, number)
    with pytest.raises(SystemExit) as caught:
        train(config(), dataset, checkpoints=tmp_path, progress=False)
    assert caught.value.code == code
    assert "epoch-0000-step-0000004" in names(tmp_path)
    assert [signal.getsignal(n) for n in HEARD] == before
    signal.signal(number, kept)


def test_under_nohup_a_lost_terminal_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.01)
        assert interrupt.asked is None
    signal.signal(signal.SIGHUP, before)


def test_a_second_signal_is_not_listened_to() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert interrupt.asked == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_without_checkpoints_or_in_a_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(enabled=False):
        assert signal.getsignal(signal.SIGINT) is before
    seen = []
    thread = threading.Thread(target=lambda: seen.append(Interrupt()._enabled))
    thread.start()
    thread.join()
    assert seen == [False]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_run_resumed_after_an_epoch_ends_with_the_same_weights(
    dataset: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, momentum: float
) -> None:
    row = METHODS["fgr"]
    changed = replace(row, constraint=replace(row.constraint, momentum=momentum))
    monkeypatch.setitem(METHODS, "fgr", changed)
    whole = train(config(), dataset, checkpoints=tmp_path / "whole", progress=False)
    last = [name for name in names(tmp_path / "whole") if name.startswith("epoch")]
    assert last == ["epoch-0003", "epoch-0004"]
    shutil.rmtree(tmp_path / "whole" / "epoch-0004")
    resumed = set_up(config(), dataset)
    assert restore(resumed.state, config(), tmp_path / "whole").name == "epoch-0003"
    assert resumed.state.epochs_done == 3
    assert same_weights(whole.model, finish(resumed, config()).state.model)


def test_fewer_checkpoints_are_those_asked_for_the_last_and_where_it_stops(
    dataset: data.Dataset, tmp_path: Path, stop_at: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, bool]] = []
    save = checkpoint.Saver.save

    def watched(self: checkpoint.Saver, name: str, *rest: Any, best: bool = False, **more: Any) -> None:
        written.append((name, best))
        save(self, name, *rest, best=best, **more)

    monkeypatch.setattr(checkpoint.Saver, "save", watched)
    words = ("train.epochs=8", "engine.checkpoint_every=3", "train.start=0.25")
    run = train(config(*words), dataset, checkpoints=tmp_path / "whole", progress=False)
    nll = {entry["epoch"]: entry["validation"]["nll"] for entry in run.history}
    saved = [3, 6, 8]
    best = [nll[epoch] == min(nll[one] for one in saved if one <= epoch) for epoch in saved]
    assert written == [(f"epoch-{epoch:04d}", one) for epoch, one in zip(saved, best, strict=True)]
    written.clear()
    stop_at(28, signal.SIGINT)  # the last step of epoch 4
    with pytest.raises(KeyboardInterrupt):
        train(config(*words), dataset, checkpoints=tmp_path / "stopped", progress=False)
    assert [name for name, _ in written] == ["epoch-0003", "epoch-0004"]
    assert written[-1][1] == (nll[4] == min(nll[one] for one in (3, 4))), "an epoch that was not asked for may be best"
    resumed = train(config(*words[:1]), dataset, checkpoints=tmp_path / "stopped", resume=True, progress=False)
    assert same(run, resumed), "how often is no matter of the result, and may change"


def test_the_best_is_one_of_the_epochs_that_were_measured(
    dataset: data.Dataset, tmp_path: Path, stop_at: Callable[[int, int], None]
) -> None:
    own = config("train.epochs=7", "evaluation.validate_every=3")
    stop_at(35, signal.SIGINT)  # the last step of epoch 5
    with pytest.raises(KeyboardInterrupt):
        train(own, dataset, checkpoints=tmp_path, progress=False)
    assert names(tmp_path) == ["best-epoch-0003", "epoch-0004", "epoch-0005"]
    run = train(own, dataset, checkpoints=tmp_path, resume=True, progress=False)
    nll = {entry["epoch"]: entry["validation"]["nll"] for entry in run.history if "validation" in entry}
    assert sorted(nll) == [3, 6, 7]
    assert names(tmp_path)[0] == f"best-epoch-{min(nll, key=lambda epoch: nll[epoch]):04d}"


def test_the_best_is_kept_beside_the_last_two(dataset: data.Dataset, tmp_path: Path) -> None:
    run = train(config("train.epochs=6"), dataset, checkpoints=tmp_path, progress=False)
    nll = [entry["validation"]["nll"] for entry in run.history]
    best = 1 + nll.index(min(nll))
    assert names(tmp_path) == [f"best-epoch-{best:04d}", "epoch-0005", "epoch-0006"]
    for path in tmp_path.glob("epoch-*"):
        shutil.rmtree(path)
    other = set_up(config("train.epochs=6"), dataset)
    restore(other.state, config("train.epochs=6"), tmp_path)
    assert other.task.validate(other.state.model) == pytest.approx(run.history[best - 1]["validation"])


def test_validation_is_that_of_the_model_in_evaluation_mode(dataset: data.Dataset) -> None:
    run = train(config(), dataset, progress=False)
    expected = evaluate(run.model, dataset, preprocess=run.preprocess, progress=False).validation
    found, bins = run.history[-1]["validation"], expected.bins
    for name in ("accuracy", "nll", "ece"):
        assert found[name] == pytest.approx(getattr(expected, name), rel=1e-6)
    said = sum(n * confidence for n, confidence in zip(bins.count, bins.confidence, strict=True)) / sum(bins.count)
    assert found["confidence"] == pytest.approx(said, rel=1e-6)
    assert run.history[-1]["images_per_second"] > 0
    assert run.history[-1]["memory"] > 10**6


@pytest.mark.slow
def test_checkpoints_of_an_earlier_version_are_resumed(
    dataset: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: Callable[[int, int], None]
) -> None:
    """One without keys that came later, and with another word for what an interrupted epoch left."""
    whole = TrainState.state_dict
    settings = config()
    expected = train(settings, dataset, progress=False)

    def as_it_was(self: TrainState) -> dict[str, Any]:
        state = whole(self)
        state["within"] = state.pop("partial")
        del state["best"], state["average"]
        return state

    monkeypatch.setattr(TrainState, "state_dict", as_it_was)
    stop_at(10, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(settings, dataset, checkpoints=tmp_path, progress=False)
    monkeypatch.undo()
    assert same(expected, train(settings, dataset, checkpoints=tmp_path, resume=True, progress=False))


def test_checkpoints_of_another_run_are_refused(dataset: data.Dataset, tmp_path: Path) -> None:
    train(config("train.epochs=1"), dataset, checkpoints=tmp_path, progress=False)
    with pytest.raises(ValueError, match="`checkpoints` should be a directory without checkpoints"):
        train(config("train.epochs=1"), dataset, checkpoints=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"`checkpoints` should be those of the same run. .*seed = 0 instead of 5"):
        train(config("train.epochs=1", "seed=5"), dataset, checkpoints=tmp_path, resume=True, progress=False)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


FILES = ("state.pt", "model.safetensors", "history.json", "checksums.json")
QUICK = ((_flip, "model.safetensors"), (Path.unlink, "state.pt"), (_cut, "history.json"))
DAMAGES = [
    pytest.param(damage, file, marks=() if (damage, file) in QUICK else pytest.mark.slow)
    for damage in (_flip, Path.unlink, _cut)
    for file in FILES
]


@pytest.mark.parametrize(("damage", "file"), DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    file: str, damage: Callable[[Path], None], dataset: data.Dataset, tmp_path: Path
) -> None:
    whole = train(config(), dataset, checkpoints=tmp_path, progress=False)
    damage(tmp_path / "epoch-0004" / file)
    with pytest.warns(UserWarning, match=r"`checkpoint` should be whole. .*epoch-0004.*epoch-0003 is tried instead"):
        resumed = train(config(), dataset, checkpoints=tmp_path, resume=True, progress=False)
    assert same(whole, resumed)
    for path in tmp_path.glob("*"):
        with suppress(FileNotFoundError):
            damage(path / file)
    with (
        pytest.warns(UserWarning, match="epoch-000"),
        pytest.raises(ValueError, match=r"a whole checkpoint \(remove it to train from the beginning\)"),
    ):
        train(config(), dataset, checkpoints=tmp_path, resume=True, progress=False)


def test_where_the_last_ones_are_damaged_the_best_is_taken(dataset: data.Dataset, tmp_path: Path) -> None:
    whole = train(config(), dataset, checkpoints=tmp_path, progress=False)
    (best,) = tmp_path.glob("best-*")
    for path in tmp_path.glob("epoch-*"):
        (path / "state.pt").unlink()
    with pytest.warns(UserWarning, match=r"epoch-000. is tried instead") as said:
        resumed = train(config(), dataset, checkpoints=tmp_path, resume=True, progress=False)
    assert f"{best.name} is tried instead" in str(said[-1].message)
    assert same(whole, resumed)


def test_damaged_checkpoints_make_way_for_the_next_one(tmp_path: Path) -> None:
    tensors = {"w": torch.zeros(1)}
    for epoch in (4, 5, 6):
        checkpoint.write(tmp_path, checkpoint.name_of(epoch), tensors, {}, b"[]")
    for path in checkpoint.checkpoints(tmp_path):  # so that training resumed from an earlier one
        (path / "state.pt").write_bytes(b"damaged")
    written = [checkpoint.write(tmp_path, checkpoint.name_of(epoch), tensors, {}, b"[]") for epoch in (2, 3, 4)]
    assert checkpoint.checkpoints(tmp_path) == written[1:]
    assert all(map(checkpoint.is_whole, written[1:]))


def test_it_says_where_it_resumes(
    dataset: data.Dataset, tmp_path: Path, stop_at: Callable[[int, int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stop_at(10, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(config(), dataset, checkpoints=tmp_path)
    assert "resumes" not in capsys.readouterr().out
    train(config(), dataset, checkpoints=tmp_path, resume=True)
    assert "resumes from epoch-0001-step-0000003" in capsys.readouterr().out
    train(config(), dataset, checkpoints=tmp_path, resume=True)
    assert "resumes" not in capsys.readouterr().out, "there was nothing left to do"


def test_a_full_disk_does_not_stop_training(
    dataset: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = checkpoint.write_atomically

    def full(path: Path, content: bytes) -> None:
        if "epoch-0003" in str(path) or "epoch-0004" in str(path):
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    run = train(config(), dataset, checkpoints=tmp_path)
    assert len(run.history) == 4
    assert names(tmp_path) == ["epoch-0002"], "the older ones made room"
    said = capsys.readouterr().out
    assert said.count("WARNING: ") == 3
    assert "WARNING: no room for checkpoint epoch-0003. Removed: best-epoch-0001, epoch-0001." in said
    assert "epoch-0003 could not be written, training continues without it: [Errno 28]" in said


def test_a_log_that_cannot_be_written_does_not_stop_training(
    dataset: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tracking, "write_atomically", full)
    run = train(config(), dataset, checkpoints=tmp_path / "checkpoints")
    assert len(run.history) == 4
    assert capsys.readouterr().out.count("WARNING: the log could not be written, training continues without it") == 4
    assert names(tmp_path / "checkpoints")[-1] == "epoch-0004"


def test_the_end_of_a_run_makes_room_and_waits_for_some(
    dataset: data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    train(config(), dataset, checkpoints=tmp_path, progress=False)
    assert names(tmp_path)[-2:] == ["epoch-0003", "epoch-0004"]
    tries = iter([28, 28, 122, None])
    monkeypatch.setattr(checkpoint, "_WAIT", 0.01)

    def write() -> str:
        if (number := next(tries)) is not None:
            raise OSError(number, "No space left on device")
        return "written"

    assert checkpoint.with_room(write, tmp_path, "record.json", warn=said.append) == "written"
    assert names(tmp_path) == ["epoch-0004"]
    assert ["Removed: " in said[0], "Waiting for 10 minutes" in said[1], len(said)] == [True, True, 2]
    for number, patience in ((28, 0.02), (13, 600.0)):  # patience ends; what is no want of room is not waited for
        tries = iter([number] * 9)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.with_room(write, tmp_path, "record.json", patience=patience, warn=said.append)
    assert names(tmp_path) == ["epoch-0004"]


def test_room_is_never_made_of_the_last_whole_checkpoint(dataset: data.Dataset, tmp_path: Path) -> None:
    train(config(), dataset, checkpoints=tmp_path, progress=False)
    (tmp_path / "epoch-0004" / "state.pt").write_bytes(b"damaged")
    checkpoint.make_room(tmp_path)
    assert names(tmp_path) == ["epoch-0003"]
    (tmp_path / "epoch-0003" / "state.pt").write_bytes(b"damaged")
    assert checkpoint.make_room(tmp_path) == []
    assert names(tmp_path) == ["epoch-0003"]


def test_checkpoints_are_in_order_beyond_epoch_9999(tmp_path: Path) -> None:
    steps = [(9999, 0), (9999, 5), (10_000, 0), (10_000, 12), (10_001, 0)]
    for epochs, step in steps:
        (tmp_path / checkpoint.name_of(epochs, step)).mkdir()
    (tmp_path / "epoch-of-mine").mkdir()
    assert checkpoint.checkpoints(tmp_path) == [tmp_path / checkpoint.name_of(*one) for one in steps]
    model = torch.nn.Linear(1, 1)
    checkpoint.write(tmp_path, checkpoint.name_of(10_002), model.state_dict(), {}, b"[]")
    assert names(tmp_path) == ["epoch-10001", "epoch-10002", "epoch-of-mine"]


def test_a_batch_that_breaks_the_gradient_is_written_down(dataset: data.Dataset, tmp_path: Path) -> None:
    settings = config("method=ce", "train.learning_rate=1e30", "train.warmup=0.0")
    with pytest.raises(FloatingPointError, match=r"method 'ce' was not finite at step 2 of epoch 1.*bad-batch.json"):
        train(settings, dataset, checkpoints=tmp_path / "checkpoints", progress=False)
    batch = json.loads((tmp_path / "bad-batch.json").read_text())
    assert batch["indices"] == set_up(settings, dataset).task.epoch(0).indices(32)[1].tolist()
    assert (batch["epoch"], batch["step"], batch["method"]) == (1, 2, "ce")
    assert "files" not in batch, "these images come from no files"
    settings = config("train.learning_rate=1e30", "train.warmup=0.0", "train.start=0", "filter.ratio=0.3")
    with pytest.raises(FloatingPointError, match=r"method 'fgr'"):
        train(settings, dataset, checkpoints=tmp_path / "checkpoints", progress=False)
    batch = json.loads((tmp_path / "bad-batch.json").read_text())
    filtered = set_up(settings, dataset).task.epoch(0).filtered[torch.tensor(batch["indices"])]
    assert batch["filtered"] == filtered.tolist()
    assert 0 < sum(batch["filtered"]) < 16


def test_a_batch_that_breaks_the_gradient_is_named_by_its_files(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "images", 2, 60)
    words = [f"data.root={json.dumps(str(tmp_path / 'images'))}", "data.loader=stream", "data.workers=0"]
    words += ["data.size=16", "train.model=small", "train.batch_size=16", "train.learning_rate=1e30"]
    settings = load_config("folder", ["method=ce", "train.warmup=0.0", *words])
    with pytest.raises(FloatingPointError, match=r"bad-batch.json"):
        train(settings, checkpoints=tmp_path / "run" / "checkpoints", progress=False)
    batch = json.loads((tmp_path / "run" / "bad-batch.json").read_text())
    files = load_dataset(settings).train.files
    assert batch["files"] == [str(files[place]) for place in batch["indices"]]


def test_deterministic_runs_are_the_same_and_leave_torch_as_it_was(dataset: data.Dataset) -> None:
    seen = []

    class Watch(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3072, 8)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(torch.are_deterministic_algorithms_enabled())
            return self.layer(images.flatten(1))

    settings = config("engine.deterministic=true", "train.epochs=1")
    run_with(settings, dataset, Watch())
    assert all(seen)
    assert not torch.are_deterministic_algorithms_enabled()
    first, second = (train(settings, dataset, progress=False) for _ in range(2))
    assert same(first, second)


def test_a_stop_in_an_epoch_leaves_the_best_one_alone(
    dataset: data.Dataset, tmp_path: Path, stop_at: Callable[[int, int], None]
) -> None:
    stop_at(10, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(config(), dataset, checkpoints=tmp_path, progress=False)
    assert [name for name in names(tmp_path) if "best" in name] == ["best-epoch-0001"]


def test_statistics_are_those_of_all_ranks_when_a_run_pauses(
    dataset: data.Dataset, tmp_path: Path, stop_at: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def averaged(model: torch.nn.Module) -> None:
        model.features[0][0][1].running_mean.fill_(7.0)

    monkeypatch.setattr(loop, "average_statistics", averaged)
    stop_at(3, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(config(), dataset, checkpoints=tmp_path, progress=False)
    resumed = set_up(config(), dataset)
    restore(resumed.state, config(), tmp_path)
    assert (resumed.state.model.features[0][0][1].running_mean == 7.0).all()


def test_seconds_before_a_stop_count(
    dataset: data.Dataset, tmp_path: Path, stop_at: Callable[[int, int], None]
) -> None:
    stop_at(3, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(config(), dataset, checkpoints=tmp_path, progress=False)
    run = set_up(config(), dataset)
    restore(run.state, config(), tmp_path)
    assert 0 < run.state.partial["seconds"] < 1000
    run.state.partial["seconds"] = 1000.0
    stop_at(2, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        finish(run, config(), tmp_path / "again")
    assert run.state.partial["seconds"] > 1000
    assert run.state.partial["steps"] == 5
    finish(run, config())
    assert run.state.history[0]["seconds"] > 1000 > run.state.history[1]["seconds"]


def test_one_checkpoint_is_written_at_a_time_and_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most, stored = [0], [0], []

    def slow(directory: Path, name: str, tensors: dict[str, torch.Tensor], state: Any, _: bytes) -> Path:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.1)
        stored.append((name, tensors["weight"].item(), state["momentum"].item()))
        inside[0] -= 1
        return directory / name

    monkeypatch.setattr(checkpoint, "write", slow)
    model, momentum = torch.nn.Linear(1, 1), torch.zeros(())
    saver = checkpoint.Saver(tmp_path)
    for value in (1.0, 2.0, 3.0):
        with torch.no_grad():
            model.weight.fill_(value)
            momentum.fill_(value)
        saver.save(f"epoch-{value:.0f}", model, {"momentum": momentum}, [])
    with torch.no_grad():  # training goes on while it is written
        model.weight.fill_(9.0)
        momentum.fill_(9.0)
    saver.wait()
    assert most == [1]
    assert stored == [("epoch-1", 1.0, 1.0), ("epoch-2", 2.0, 2.0), ("epoch-3", 3.0, 3.0)]


def test_a_checkpoint_is_safe_before_an_older_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, calls = {"weight": torch.ones(1)}, []
    for name in ("epoch-0001", "epoch-0002"):
        checkpoint.write(tmp_path, name, tensors, {}, b"[]")
    rename, remove, sync = Path.rename, shutil.rmtree, checkpoint._sync
    monkeypatch.setattr(Path, "rename", lambda a, b: (calls.append(f"rename {b.name}"), rename(a, b))[1])
    monkeypatch.setattr(checkpoint, "_sync", lambda path: (calls.append(f"sync {path.name}"), sync(path))[1])

    def removing(path: Path, **options: Any) -> None:
        calls.extend([f"remove {path.name}"] if path.exists() else [])
        remove(path, **options)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", removing)
    checkpoint.write(tmp_path, "epoch-0003", tensors, {}, b"[]")
    assert calls == ["rename epoch-0003", f"sync {tmp_path.name}", "remove epoch-0001"]


def test_what_a_kill_left_half_written_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    for name in (".epoch-0003.tmp", ".best-epoch-0002.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.pt").write_bytes(b"half")
    saver = checkpoint.Saver(tmp_path)
    saver.save("epoch-0003", model, {"config": {}, "epochs": 3}, [], best=True)
    saver.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-epoch-0003", "epoch-0003"]
    checkpoint.check(tmp_path / "best-epoch-0003")


@pytest.mark.usefixtures("unchecked")
def test_the_best_epoch_is_better_than_all_before(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = _SavingHooks(load_config("demo"), None, Interrupt(enabled=False))
    saved: list[bool] = []
    monkeypatch.setattr(hooks, "_save", lambda *_, best: saved.append(best))
    history = [{"epoch": epoch, "validation": {"nll": nll}} for epoch, nll in enumerate((3.0, 1.0, 2.0, 0.5), start=1)]
    for count in range(1, 5):
        hooks.after_epoch(SimpleNamespace(history=history[:count], epochs_done=count), None)  # type: ignore[arg-type]
    assert saved == [True, True, False, True]


@pytest.mark.usefixtures("unchecked")
def test_a_best_epoch_that_a_signal_saved_stays_the_best_after_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = (5.0, 4.0, 3.0, 1.0, 2.0, 1.5, 0.5, 3.0, 0.7)
    history = [{"epoch": epoch, "validation": {"nll": nll}} for epoch, nll in enumerate(values, start=1)]
    for name in ("epoch-0003", "epoch-0004", "best-epoch-0004", "epoch-0004-step-0000002", "notes"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    hooks = _SavingHooks(
        load_config("demo", ["engine.checkpoint_every=3"]), tmp_path / "checkpoints", Interrupt(enabled=False)
    )
    saved: list[tuple[int, bool]] = []
    monkeypatch.setattr(hooks, "_save", lambda state, *_, best: saved.append((state.epochs_done, best)))
    monkeypatch.setattr(hooks, "_tracking", None)
    for count in range(5, 10):
        hooks.after_epoch(SimpleNamespace(history=history[:count], epochs_done=count), None)  # type: ignore[arg-type]
    assert saved == [(6, False), (9, True)], "epoch 7 was never saved"


@pytest.mark.usefixtures("unchecked")
def test_an_epoch_that_a_signal_saves_is_judged_by_its_own_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = _SavingHooks(load_config("demo", ["engine.checkpoint_every=3"]), None, Interrupt(enabled=False))
    saved: list[tuple[int, bool]] = []
    monkeypatch.setattr(hooks, "_save", lambda state, *_, best: saved.append((state.epochs_done, best)))
    history = [{"epoch": k, "validation": {"nll": nll}} for k, nll in enumerate((9.0, 9.0, 1.0, 5.0), start=1)]
    for count, asked in ((3, False), (4, True)):
        monkeypatch.setattr(hooks._interrupt, "now", lambda asked=asked: asked)
        hooks.after_epoch(SimpleNamespace(history=history[:count], epochs_done=count), None)  # type: ignore[arg-type]
    assert saved == [(3, True), (4, False)]


def test_the_epochs_that_have_a_checkpoint(tmp_path: Path) -> None:
    for name in ("epoch-0007", "best-epoch-0004", "epoch-0009-step-0000003", "notes"):
        (tmp_path / name).mkdir()
    assert checkpoint.epochs_in(tmp_path) == {4, 7}
    assert checkpoint.epochs_done(tmp_path) == 9
    assert checkpoint.epochs_done(tmp_path / "none") == 0


def test_dropout_continues_where_an_epoch_was_stopped(
    dataset: data.Dataset, tmp_path: Path, stop_at: Callable[[int, int], None]
) -> None:
    settings = config("method=ce", "train.epochs=2")

    def start() -> Setup:
        torch.manual_seed(0)
        layers = (torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(3072, 8))
        return set_up(settings, dataset, torch.nn.Sequential(*layers))

    whole = finish(start(), settings)
    stop_at(3, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        finish(start(), settings, tmp_path)
    resumed = finish(start(), settings, tmp_path, resume=True)
    assert same_weights(whole.state.model, resumed.state.model)


FORGED = {
    "a list": [1, 2],
    "no config": {"epochs": 1},
    "epochs that are words": {"config": {}, "epochs": "many"},
    "a config of another world": {"config": {"planet": "mars"}, "epochs": 1},
    "no optimiser": {"config": None, "epochs": 1, "partial": {}},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FORGED)
def test_forged_checkpoints_are_refused_in_one_line(kind: str, dataset: data.Dataset, tmp_path: Path) -> None:
    """Their checksums are right, and they are none of ours."""
    settings = config()
    model = set_up(settings, dataset).state.model
    content = FORGED[kind]
    if isinstance(content, dict) and content.get("config", 0) is None:
        content = content | {"config": settings.to_dict()}
    checkpoint.write(tmp_path, "epoch-0001", model.state_dict(), content, b"[]")
    with pytest.raises(ValueError, match="should be") as caught:
        train(settings, dataset, checkpoints=tmp_path, resume=True, progress=False)
    assert "\n" not in str(caught.value)
