"""What runs of a grid have in common until filter and constraint start is trained once."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from shiftcal._errors import RunDirectoryError, UnfinishedError
from shiftcal.cli import app
from shiftcal.experiments import checkpoint, grid, warmup
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.grid import complete_all
from shiftcal.experiments.run import complete
from shiftcal.experiments.warmup import identity, warmups
from shiftcal.records import RunRecord

SMALL = ["data.train=96", "data.validation=40", "data.test=40", "train.epochs=4", "train.batch_size=32"]
SMALL += ["train.start=0.5", "evaluation.corruptions=[]", "filter.ratio=0.3", "gamma.dfl=0.5", "gamma.fgr=0.5"]


def config(method: str, *words: str) -> Config:
    return load_config("demo", [*SMALL, f"method={method}", *words])


def alike(one: str, other: str, *words: str) -> bool:
    return identity(config(one)) == identity(config(other, *words))


def result(record: RunRecord) -> tuple[object, ...]:
    """All that a run measured, without times."""
    timed = {"seconds", "images_per_second", "memory", "shared"}
    history = [epoch.model_dump(exclude=timed) for epoch in record.history]
    return record.evaluation, record.also, history, record.weights


def test_runs_that_share_a_warmup_end_as_they_do_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []
    monkeypatch.setattr(warmup, "train", lambda *a, **k: (trained.append(a[0].method), real(*a, **k))[1])
    names = ("filter-only", "fgr-ema", "dfl", "ce")
    configs = {name: config(name, 'evaluation.also=["best_ece", "average"]') for name in names}
    records = complete_all(configs, tmp_path / "grid")
    assert trained == ["filter-only"], "one warm-up for three methods; cross-entropy has none to share"
    for name, record in zip(names, records, strict=True):
        alone = complete(configs[name], tmp_path / name, progress=False)
        assert result(record) == result(alone), name
        ours, theirs = (load_file(place / name / "model.safetensors") for place in (tmp_path / "grid", tmp_path))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs), name
        assert [epoch.shared for epoch in record.history] == ([None] * 4 if name == "ce" else [True, True, None, None])
        assert '"shared":true' in record.to_json() or name == "ce"
        assert '"shared":null' not in record.to_json()


real = warmup.train


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
    for words in ("evaluation.bins=10", "evaluation.batch_size=20", "data.train=64", "perturb.until=0.9"):
        assert alike("fgr", "fgr", words) == words.startswith("perturb"), words
    assert alike("fgr", "fgr", "data.workers=1", "engine.checkpoint_every=3", "evaluation.temperature_criterion=ece")
    for words in ("train.keep=average", "engine.precision=bf16", "gamma.runner_up=incorrect", "train.model=resnet18"):
        assert not alike("fgr", "fgr", words), words
    assert not alike("fgr", "fgr", 'evaluation.also=["best_nll"]'), "what is kept of the epochs before"
    assert not alike("ls", "ls", "train.smoothing=0.1")
    assert alike("ls", "ls", "train.smoothing=0.05"), "the row's own"
    assert not alike("dfl+views", "dfl+views", "perturb.severity=5.0")
    assert not alike("dfl+views", "dfl+view")
    assert not alike("fgr", "fgr+mixup")
    assert not alike("fgr", "fgr-released")
    assert not alike("ce", "fgr")


def test_only_what_two_new_runs_have_in_common_is_trained_first(tmp_path: Path) -> None:
    def found(*members: Config) -> list[str]:
        return list(warmups({str(number): member for number, member in enumerate(members)}, tmp_path))

    (place,) = found(config("fgr"), config("filter-only"), config("ce"))
    assert re.fullmatch(r"\.warmups/[0-9a-f]{12}-0", place)
    assert found(config("fgr")) == []
    assert found(config("ce"), config("ls")) == []
    assert len(found(*(config(name, f"seed={seed}") for name in ("fgr", "dfl") for seed in (0, 1)))) == 2
    for words in ("train.start=0.0", "train.start=1.0", "evaluation.every=1", "evaluation.noise=[2]"):
        assert found(config("fgr", words), config("rect-only", words)) == [], words
    noisy = (config("fgr", "evaluation.noise=[3]"), config("rect-only", "evaluation.noise=[3]"))
    (chosen,) = warmups({"a": noisy[0], "b": noisy[1]}, tmp_path).values()
    assert chosen.evaluation.noise == ()
    tuned = [config(name).model_copy(update={"finetuned_from": "x"}) for name in ("fgr", "dfl")]
    assert found(*tuned) == []


def test_an_interrupted_warmup_is_resumed_whichever_run_began_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = {name: config(name, "train.epochs=6") for name in ("fgr", "rect-only")}
    (place,) = (tmp_path / name for name in warmups(configs, tmp_path))
    real(configs["rect-only"], checkpoints=place / "checkpoints", until=1, progress=False)
    resumed: list[object] = []
    monkeypatch.setattr(checkpoint, "load", lambda path, model: (resumed.append(path), load(path, model))[1])
    warmup.warm_up(configs["fgr"], place)
    assert resumed == [place / "checkpoints" / "epoch-0001"]
    assert warmups(configs, tmp_path) == {}, "it is there"
    monkeypatch.setattr(warmup, "train", lambda *_, **__: pytest.fail("and not trained again"))
    records = complete_all({"fgr": configs["fgr"]}, tmp_path)
    assert result(records[0]) == result(complete(configs["fgr"], tmp_path.with_name("alone"), progress=False))
    assert not (tmp_path / ".warmups").exists(), "they are removed when all runs have finished"


load = checkpoint.load


def test_a_run_that_takes_over_has_the_best_checkpoint_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = {name: config(name, "train.learning_rate=0.5", "train.epochs=5") for name in ("fgr", "rect-only")}
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
    assert [[epoch.shared for epoch in record.history][:2] for record in records] == [[True, True]] * 2
    assert records[0].history[-1].mean_cosine != records[1].history[-1].mean_cosine


def test_a_damaged_warmup_is_not_taken_and_a_grid_may_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = {name: config(name, "train.epochs=2") for name in ("fgr", "rect-only")}
    (place,) = (tmp_path / name for name in warmups(configs, tmp_path))
    warmup.warm_up(configs["fgr"], place)
    whole = (place / "checkpoints" / "epoch-0001" / "model.safetensors").read_bytes()
    for file in place.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(whole[:-4] + b"?!?!")
    with (
        pytest.warns(UserWarning, match="epoch-0001"),
        pytest.raises(ValueError, match=r"remove it to train .*all are d"),
    ):
        complete_all(configs, tmp_path)
    assert not (tmp_path / "fgr").exists()
    for file in place.glob("checkpoints/*/model.safetensors"):
        file.write_bytes(whole)
    monkeypatch.setattr(warmup, "locked", held)
    with pytest.raises(ValueError, match="fgr"):  # another process trains there
        complete_all(configs, tmp_path)
    assert not checkpoint.checkpoints(tmp_path / "fgr" / "checkpoints")
    monkeypatch.setattr(grid, "warmups", lambda *_: pytest.fail("not shared"))
    apart = complete_all(configs, tmp_path, share_warmup=False)
    assert {epoch.shared for record in apart for epoch in record.history} == {None}, "one that is there is not taken"


def held(out: Path) -> None:
    raise RunDirectoryError("out", "a directory in which no other process works", str(out))


def test_a_warmup_that_another_process_trains_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warmup, "locked", held)
    records = complete_all({name: config(name, "train.epochs=2") for name in ("fgr", "rect-only")}, tmp_path)
    assert {epoch.shared for record in records for epoch in record.history} == {None}
    assert "is not shared: Parameter `out` should be a directory in which no other" in capsys.readouterr().out


def test_a_warmup_that_diverges_stops_nothing_else(tmp_path: Path) -> None:
    bad = {name: config(name, "train.learning_rate=1e30", "train.warmup=0.0") for name in ("fgr", "rect-only")}
    with pytest.raises(UnfinishedError, match=r"2 of 3 runs did not finish\. fgr: .*rect-only: "):
        complete_all(bad | {"ce": config("ce")}, tmp_path)


@pytest.mark.slow
def test_a_grid_from_the_command_line_side_by_side_and_a_sweep(tmp_path: Path) -> None:
    words = [word for item in SMALL for word in ("--set", item)]

    def bench(*more: str) -> str:
        done = CliRunner().invoke(app, ["bench", "demo", *words, "--out", str(tmp_path), *more])
        assert done.exit_code == 0, done.stderr
        return done.stdout

    told = bench("--methods", "fgr,filter-only,ce", "--seeds", "0-1", "--workers-per-gpu", "2")
    assert "Shared warm-ups: 2" in told
    for name in ("fgr-0", "fgr-1", "filter-only-0", "filter-only-1"):
        history = json.loads((tmp_path / name / "record.json").read_text())["history"]
        assert [epoch.get("shared") for epoch in history] == [True, True, None, None], name
    assert not (tmp_path / ".warmups").exists()
    told = bench("--methods", "weighted-sum", "--sweep", "constraint.weight=1,2", "--no-share-warmup")
    assert "Shared warm-ups" not in told
    assert "Shared warm-ups: 1" in bench("--methods", "weighted-sum", "--sweep", "constraint.weight=3,4")
    history = json.loads((tmp_path / "weighted-sum-constraint.weight=4-0" / "record.json").read_text())["history"]
    assert history[0]["shared"], "a sweep of one method"
    assert "weighted-sum" in (tmp_path / "table.md").read_text()
