"""What runs of a grid have in common until filter and constraint start is trained by one of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from shiftcal._errors import RunDirectoryError, UnfinishedError
from shiftcal._lock import locked
from shiftcal.cli import app
from shiftcal.experiments import checkpoint, grid, warmup
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.grid import complete_all
from shiftcal.experiments.run import complete, train
from shiftcal.experiments.warmup import followers_of, hand_over, identity
from shiftcal.records import RunRecord, read_record

SMALL = ["data.train=96", "data.validation=40", "data.test=40", "train.epochs=4", "train.batch_size=32"]
SMALL += ["train.start=0.5", "evaluation.corruptions=[]", "filter.ratio=0.3", "gamma.dfl=0.5", "gamma.fgr=0.5"]


def config(method: str, *words: str) -> Config:
    return load_config("demo", [*SMALL, f"method={method}", *words])


def alike(one: str, other: str, *words: str) -> bool:
    return identity(config(one)) == identity(config(other, *words))


def result(record: RunRecord) -> tuple[object, ...]:
    """All that a run measured, without times."""
    timed = {"seconds", "images_per_second", "memory", "trained_by"}
    history = [epoch.model_dump(exclude=timed) for epoch in record.history]
    return record.evaluation, record.also, history, record.weights


def trained_by(record: RunRecord) -> list[str | None]:
    return [epoch.trained_by for epoch in record.history]


def test_runs_that_share_a_warmup_end_as_they_do_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("filter-only", "fgr-ema", "dfl", "ce")
    words = ('evaluation.also=["best_ece", "average"]', "engine.checkpoint_every=3")
    configs = {name: config(name, *words) for name in names}
    records = complete_all(configs, tmp_path / "grid")
    assert "fgr-ema  resumes from epoch-0002, trained by filter-only\n" in capsys.readouterr().out
    for name, record in zip(names, records, strict=True):
        alone = complete(configs[name], tmp_path / name, progress=False)
        assert result(record) == result(alone), name
        ours, theirs = (load_file(place / name / "model.safetensors") for place in (tmp_path / "grid", tmp_path))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs), name
        follows = name in ("fgr-ema", "dfl")
        assert trained_by(record) == (["filter-only"] * 2 if follows else [None] * 2) + [None] * 2, name
        assert ('"trained_by":"filter-only"' in record.to_json()) == follows
        assert '"trained_by":null' not in record.to_json()


def test_what_decides_the_epochs_before_the_start() -> None:
    for other in ("filter-only", "rect-only", "weighted-sum", "pcgrad", "fgr-ema", "fgr-shared", "fgr-mmce", "dfl"):
        assert alike("fgr", other), other
    assert alike("fgr-released", "filter-only-released", "gamma.released=5")
    assert alike("fgr-released", "dfl-released", "train.clip_norm=2.0"), "the row's own"
    assert alike("ls", "ls", "perturb.severity=5.0"), "no views"
    assert alike("fgr", "fgr", "filter.ratio=0.1", "constraint.scope=classifier", "engine.compile=on")
    assert alike("fgr+views", "dfl+views")
    for words in (
        "seed=1",
        "gamma.fgr=0.6",
        "train.start=0.75",
        "train.epochs=8",
        "data.seed=1",
        "train.clip_norm=1.0",
    ):
        assert not alike("fgr", "fgr", words), words
    for words in (
        "evaluation.bins=10",
        "evaluation.batch_size=20",
        "evaluation.validate_every=2",
        "data.train=64",
        "perturb.until=0.9",
    ):
        assert alike("fgr", "fgr", words) == words.startswith("perturb"), words
    assert alike("fgr", "fgr", "data.workers=1", "engine.checkpoint_every=3", "evaluation.temperature_criterion=ece")
    of_the_step = ("learning_rate=0.3", "momentum=0.5", "weight_decay=0.1", "schedule=cosine", "warmup=0.0")
    of_the_run = ("augment=none", "batch_size=16", "accumulate=2", "loss_reduction=sum", "average_decay=0.5")
    for words in (*of_the_step, *of_the_run):
        assert not alike("fgr", "fgr", f"train.{words}"), words
    for words in (
        "engine.deterministic=true",
        "train.keep=average",
        "engine.precision=bf16",
        "gamma.runner_up=incorrect",
        "train.model=resnet18",
    ):
        assert not alike("fgr", "fgr", words), words
    assert not alike("fgr", "fgr", 'evaluation.also=["best_nll"]'), "what is kept of the epochs before"
    averaged = identity(config("fgr", 'evaluation.also=["average", "last"]'))
    assert averaged == identity(config("fgr", "train.keep=average")), (
        "whoever asks for it, and the last there always is"
    )
    assert not alike("ls", "ls", "train.smoothing=0.1")
    assert alike("ls", "ls", "train.smoothing=0.05"), "the row's own"
    assert not alike("dfl+views", "dfl+views", "perturb.severity=5.0")
    assert not alike("dfl+views", "dfl+view")
    assert not alike("fgr", "fgr+mixup")
    assert not alike("fgr", "fgr-released")
    assert not alike("ce", "fgr")


def test_only_runs_that_have_not_begun_follow_one_that_is_not_past_it(tmp_path: Path) -> None:
    def found(*members: Config, of: int = 0) -> list[str]:
        return list(followers_of(str(of), {str(k): member for k, member in enumerate(members)}, tmp_path))

    assert found(config("fgr"), config("filter-only"), config("ce"), config("dfl")) == ["1", "3"]
    assert found(config("dfl"), config("filter-only")) == ["1"]
    assert found(config("fgr")) == found(config("ce"), config("ls"), config("ce")) == []
    assert found(config("fgr"), config("dfl", "seed=1"), config("dfl")) == ["2"]
    for words in ("train.start=0.0", "train.start=1.0", "evaluation.every=1", "evaluation.noise=[2]"):
        assert found(config("fgr", words), config("rect-only", words)) == [], words
        assert found(config("fgr"), config("rect-only", words)) == [], words
    noisy = "evaluation.noise=[3]"
    assert found(config("fgr", noisy), config("rect-only")) == ["1"], "measured after it"
    tuned = [config(name).model_copy(update={"finetuned_from": "x"}) for name in ("fgr", "dfl")]
    assert found(*tuned) == []
    three = (config("fgr"), config("dfl"), config("rect-only"))
    (tmp_path / "1" / "checkpoints" / "epoch-0000-step-0000002").mkdir(parents=True)
    assert found(*three) == ["2"]
    assert found(*three, of=1) == ["0", "2"], "it has begun, and is before the start"
    (tmp_path / "1" / "checkpoints" / "epoch-0002-step-0000001").mkdir(parents=True)
    assert found(*three, of=1) == []
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "record.json").write_text("{}")
    assert found(*three) == found(*three, of=2) == []


def test_a_run_that_was_interrupted_before_the_start_still_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, state: Any, bar: Any) -> bool:
        self._save(state, bar, best=False)
        raise KeyboardInterrupt

    configs = {name: config(name, "train.epochs=6") for name in ("rect-only", "fgr")}
    with monkeypatch.context() as patched:
        patched.setattr("shiftcal.experiments.saving._SavingHooks.after_epoch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            complete_all(configs, tmp_path / "grid")
    begun = checkpoint.checkpoints(tmp_path / "grid" / "rect-only" / "checkpoints")
    assert [path.name for path in begun] == ["epoch-0001"]
    records = complete_all(configs, tmp_path / "grid")
    assert trained_by(records[1])[:3] == ["rect-only"] * 3
    assert result(records[1]) == result(complete(configs["fgr"], tmp_path / "alone", progress=False))


def test_a_follower_has_the_best_checkpoint_too(tmp_path: Path) -> None:
    configs = {name: config(name, "train.learning_rate=0.5", "train.epochs=5") for name in ("rect-only", "fgr")}
    complete_all(configs, tmp_path / "grid")
    complete(configs["fgr"], tmp_path / "fgr", progress=False)
    shared, alone = (sorted(p.name for p in (tmp_path / d / "fgr" / "checkpoints").iterdir()) for d in ("grid", ""))
    assert shared == alone
    assert alone[0].startswith("best-epoch-")


def test_runs_that_average_the_constraint_over_other_parameters(tmp_path: Path) -> None:
    """The running mean starts with the constraint: that of the run that trained the warm-up may have another length."""
    scopes = ("all", "classifier")
    configs = {scope: config("fgr-ema", f"constraint.scope={scope}") for scope in scopes}
    records = complete_all(configs, tmp_path)
    assert [trained_by(record)[:2] for record in records] == [[None] * 2, ["all"] * 2]
    assert records[0].history[-1].mean_cosine != records[1].history[-1].mean_cosine


@pytest.fixture
def warmed(tmp_path: Path) -> Path:
    """A checkpoint at the end of a warm-up."""
    train(config("fgr", "train.epochs=2"), checkpoints=tmp_path / "fgr" / "checkpoints", progress=False)
    return tmp_path / "fgr" / "checkpoints" / "epoch-0001"


def test_what_cannot_be_handed_over_is_told_and_trains_on_its_own(
    warmed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {name: config(name, "train.epochs=2") for name in ("dfl", "rect-only", "weighted-sum")}

    def handed() -> list[str]:
        hand_over(warmed, others, tmp_path, "fgr")
        return [name for name in others if checkpoint.checkpoints(tmp_path / name / "checkpoints")]

    monkeypatch.setattr(warmup, "locked", lambda out: locked(out) if out.name != "dfl" else held(out))
    (tmp_path / "rect-only").mkdir()
    (tmp_path / "rect-only" / "notes.txt").write_text("somebody's")
    assert handed() == ["weighted-sum"]
    told = capsys.readouterr().out
    assert "dfl does not continue from the warm-up of fgr: Parameter `out` should be a directory that nobody" in told
    assert "rect-only does not continue from the warm-up of fgr: " in told
    assert "weighted-sum" not in told
    monkeypatch.setattr(warmup, "locked", locked)
    monkeypatch.setattr(checkpoint, "write", full_disk)
    assert handed() == ["weighted-sum"]
    assert "dfl does not continue from the warm-up of fgr: [Errno 28]" in capsys.readouterr().out
    monkeypatch.undo()
    (warmed / "model.safetensors").write_bytes(b"damaged")
    assert handed() == ["weighted-sum"]
    assert "dfl does not continue from the warm-up of fgr: " in capsys.readouterr().out
    record = complete(others["dfl"], tmp_path / "dfl", resume=True, progress=False)
    assert trained_by(record) == [None, None]


def test_a_run_that_has_begun_meanwhile_is_left_alone(warmed: Path, tmp_path: Path) -> None:
    begun = tmp_path / "dfl" / "checkpoints" / "epoch-0001"
    hand_over(warmed, {"dfl": config("dfl", "train.epochs=2")}, tmp_path, "fgr")
    before = (begun / "state.pt").stat().st_mtime_ns
    hand_over(warmed, {"dfl": config("dfl", "train.epochs=2")}, tmp_path, "fgr")
    assert (begun / "state.pt").stat().st_mtime_ns == before


def test_half_a_copy_is_no_beginning(warmed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def killed(*words: Any) -> Path:
        names.append(words[1])
        return write(*words) if len(names) == 1 else full_disk()

    write = checkpoint.write
    assert checkpoint.best_checkpoints(warmed.parent)
    monkeypatch.setattr(checkpoint, "write", killed)
    hand_over(warmed, {"dfl": config("dfl", "train.epochs=2")}, tmp_path, "fgr")
    assert names == ["best-epoch-0001", "epoch-0001"]
    assert not checkpoint.checkpoints(tmp_path / "dfl" / "checkpoints"), "it is written again the next time"


def test_a_damaged_best_checkpoint_is_left_out(warmed: Path, tmp_path: Path) -> None:
    (best,) = checkpoint.best_checkpoints(warmed.parent)
    (best / "history.json").unlink()  # a link to that of the other
    (best / "history.json").write_text("[]")
    hand_over(warmed, {"dfl": config("dfl", "train.epochs=2")}, tmp_path, "fgr")
    assert [path.name for path in (tmp_path / "dfl" / "checkpoints").iterdir()] == ["epoch-0001"]


def held(out: Path) -> Any:
    raise RunDirectoryError("out", "a directory that nobody else is using", str(out))


def full_disk(*_: Any) -> Path:
    raise OSError(28, "No space left on device")


def test_a_grid_may_do_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = {name: config(name, "train.epochs=2") for name in ("fgr", "rect-only")}
    assert none_shared(complete_all(configs, tmp_path / "a", share_warmup=False))
    assert warmup.on_one_machine()
    with monkeypatch.context() as patched:
        patched.setattr(warmup._distributed, "all_gather_object", lambda name: [name, "another machine"])
        assert not warmup.on_one_machine()
    monkeypatch.setattr(grid, "on_one_machine", lambda: False)
    assert none_shared(complete_all(configs, tmp_path / "b"))


def none_shared(records: list[RunRecord]) -> bool:
    return {one for record in records for one in trained_by(record)} == {None}


def test_a_warmup_that_diverges_stops_nothing_else(tmp_path: Path) -> None:
    bad = {name: config(name, "train.learning_rate=1e30", "train.warmup=0.0") for name in ("fgr", "rect-only")}
    with pytest.raises(UnfinishedError, match=r"2 of 3 runs did not finish\. fgr: .*rect-only: "):
        complete_all(bad | {"ce": config("ce")}, tmp_path)


def test_trackers_are_told_of_the_epochs_that_another_run_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, list[int]] = {}

    class Told:
        def __init__(self, name: str) -> None:
            self.epochs = told.setdefault(name, [])

        def log(self, numbers: dict[str, float], epoch: int) -> None:
            assert all(isinstance(value, float) for value in numbers.values())
            self.epochs.append(epoch)

        def finish(self, *_: Any) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr("shiftcal.experiments.tracking.make_tracker", lambda _, out, __: Told(out.name))
    names = ("fgr", "rect-only")
    records = complete_all({name: config(name, 'train.track=["tensorboard"]') for name in names}, tmp_path)
    assert trained_by(records[1])[:2] == ["fgr", "fgr"]
    assert told == {name: [1, 2, 3, 4] for name in names}


@pytest.mark.slow
def test_side_by_side_and_a_sweep_from_the_command_line(tmp_path: Path) -> None:
    words = [word for item in SMALL for word in ("--set", item)]

    def bench(*more: str) -> str:
        done = CliRunner().invoke(app, ["bench", "demo", *words, "--out", str(tmp_path), *more])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    def shared(name: str) -> list[str | None]:
        return trained_by(read_record(tmp_path / name / "record.json"))[:2]

    bench("--methods", "fgr,filter-only,ce", "--seeds", "0-1", "--workers-per-gpu", "3")
    assert shared("fgr-0") == shared("ce-1") == [None, None]
    assert shared("filter-only-0") == ["fgr-0"] * 2
    assert shared("filter-only-1") == ["fgr-1"] * 2
    bench("--methods", "weighted-sum", "--sweep", "constraint.weight=1,2", "--no-share-warmup")
    assert shared("weighted-sum-constraint.weight=2-0") == [None, None]
    bench("--methods", "weighted-sum", "--sweep", "constraint.weight=3,4")
    assert shared("weighted-sum-constraint.weight=4-0") == ["weighted-sum-constraint.weight=3-0"] * 2
    assert "weighted-sum" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "fgr-0" / "config.json").read_text())["method"] == "fgr"


@pytest.mark.slow
def test_side_by_side_a_run_that_fails_before_the_start_lets_the_others_go(tmp_path: Path) -> None:
    bad = {name: config(name, "train.learning_rate=1e30", "train.warmup=0.0") for name in ("fgr", "rect-only")}
    with pytest.raises(UnfinishedError, match=r"2 of 3 runs did not finish\. fgr: The .*rect-only: The "):
        complete_all(bad | {"ce": config("ce")}, tmp_path, workers=2)
