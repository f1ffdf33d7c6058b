"""Sweeps and selections from end to end, on the embedded data set."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shiftcal.cli import app
from shiftcal.records import Choice, Selection, read_record, read_selection

TINY = ["data.train=64", "data.validation=40", "data.test=40", "train.epochs=1", "train.batch_size=32"]
TINY += ["train.start=0.0", "evaluation.corruptions=[]"]
OPTIONS = [word for item in TINY for word in ("--set", item)]


def bench(out: Path, *words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", "demo", *OPTIONS, "--out", str(out), *words])
    return result.exit_code, result.stdout, result.stderr


def runs(out: Path) -> set[str]:
    return {path.parent.name for path in out.glob("*/record.json")}


@pytest.mark.slow
def test_a_sweep_adds_up_in_one_directory(tmp_path: Path) -> None:
    out = tmp_path / "grid"
    assert bench(out, "--methods", "fgr")[0] == 0
    code, stdout, stderr = bench(out, "--methods", "ce,fgr", "--seeds", "0-1", "--sweep", "filter.ratio=0.1,0.5")
    assert code == 0, stderr
    assert "ce does not use filter.ratio: one run stands for all values." in stdout
    assert stdout.count("finished earlier and kept") == 1, "fgr-0 has a ratio of 0.1, the default"
    swept = {"fgr-filter.ratio=0.1-1", "fgr-filter.ratio=0.5-0", "fgr-filter.ratio=0.5-1"}
    assert runs(out) == {"ce-0", "ce-1", "fgr-0"} | swept
    assert "| fgr, filter.ratio 0.1 | " in stdout
    assert "| fgr, filter.ratio 0.5 | " in stdout
    code, stdout, stderr = bench(out, "--methods", "fgr", "--sweep", "gamma.fgr=1,0.5")
    assert code == 0, stderr
    assert runs(out) >= swept | {"fgr-gamma.fgr=1-0"}
    assert "fgr-gamma.fgr=0.5-0" not in runs(out), "fgr-0 is this run"
    assert "| fgr, filter.ratio 0.1, gamma.fgr 1 | " in stdout
    code, stdout, stderr = bench(out, "--methods", "dfl")
    assert code == 0, "a grid without a sweep adds to it"
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/record.json")}
    code, _, stderr = bench(out, "--methods", "ls", "--set", "train.batch_size=16")
    assert (code, "has train.batch_size = 32 instead of 16" in stderr) == (2, True), "what was not swept is refused"
    (out / "fgr-filter.ratio=0.5-0").rename(out / "fgr-filter.ratio=0.6-0")
    code, _, stderr = bench(out, "--methods", "ls")
    assert (code, "where fgr-filter.ratio=0.6-0 has filter.ratio = 0.5 instead of 0.1" in stderr) == (2, True), stderr
    assert len(runs(out)) == len(before)


@pytest.mark.slow
def test_a_sweep_side_by_side(tmp_path: Path) -> None:
    words = ["--methods", "fgr", "--sweep", "filter.qualities=[15],[18, 25]", "--workers-per-gpu", "2"]
    code, stdout, stderr = bench(tmp_path, *words)
    assert code == 0, stderr
    assert runs(tmp_path) == {"fgr-filter.qualities=15-0", "fgr-filter.qualities=18+25-0"}
    assert r"| fgr, filter.qualities \[18, 25\] |" in stdout


@pytest.mark.slow
def test_a_value_is_selected_and_the_other_seeds_run_with_it(tmp_path: Path) -> None:
    words = ["--methods", "ce,fgr", "--seeds", "0-1", "--select", "gamma.fgr=0,3", "--select", "filter.ratio=0.1,0.9"]
    code, stdout, stderr = bench(tmp_path, *words)
    assert code == 0, stderr
    assert "ce does not use gamma.fgr, filter.ratio: one run stands for all values." in stdout
    [choice] = read_selection(tmp_path).choices
    metrics = {
        one.run: read_record(tmp_path / one.run / "record.json").evaluation.validation.ece for one in choice.candidates
    }
    assert {one.run: one.metric for one in choice.candidates} == metrics
    assert len(metrics) == 4
    assert choice.chosen == min(metrics, key=metrics.__getitem__)
    assert "has the best validation.ece (gamma.fgr = 0.0, filter.ratio = 0.1: 0." in stdout
    assert runs(tmp_path) == {"ce-0", "ce-1", *metrics, f"{choice.chosen.removesuffix('-0')}-1"}
    assert len(re.findall(r"^\| fgr \|", stdout, re.MULTILINE)) == 2, "the chosen ones alone, without a label"
    page = (tmp_path / "report.html").read_text()
    assert page.count("not chosen by validation.ece, see selection.json") == 3
    table = (tmp_path / "table.md").read_text()
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    hidden = sorted(metrics.keys() - {choice.chosen})
    assert f"Left out, since selection.json has another choice: {', '.join(hidden)}\n" in result.stdout
    assert (result.exit_code, (tmp_path / "table.md").read_text()) == (0, table)
    code, again, stderr = bench(tmp_path, *words)
    assert (code, "epoch 1/1" in again) == (0, False), "nothing is trained again"
    assert read_selection(tmp_path).choices == (choice,)
    code, _, stderr = bench(tmp_path, *words, "--by", "validation.accuracy")
    assert code == 0, stderr
    [other] = read_selection(tmp_path).choices
    best = max(one.metric for one in other.candidates)
    assert {one.run: one.metric for one in other.candidates}[other.chosen] == best, "the highest accuracy"
    code, stdout, stderr = bench(
        tmp_path, "--methods", "fgr", "--sweep", "gamma.fgr=0,3", "--sweep", "filter.ratio=0.1,0.9"
    )
    assert code == 0, stderr
    assert stdout.count("| fgr, filter.ratio") == 2 * 4, "a sweep over the candidates shows them all"
    assert not (tmp_path / "selection.json").exists()


@pytest.mark.slow
def test_candidates_that_diverge_are_not_chosen(tmp_path: Path) -> None:
    words = ["--methods", "ce,dfl", "--seeds", "0,1", "--select", "train.learning_rate=1e30,0.05"]
    words += ["--set", "train.warmup=0.0"]
    code, stdout, stderr = bench(tmp_path, *words)
    assert (code, stderr.startswith("2 of 6 runs did not finish. ce-train.learning_rate=1e+30-0: ")) == (1, True), (
        stderr
    )
    assert [one.chosen for one in read_selection(tmp_path).choices] == [
        "ce-train.learning_rate=0.05-0",
        "dfl-train.learning_rate=0.05-0",
    ]
    assert "| dfl | " in stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sweep", "filter.ration=1"], "Did you mean 'filter.ratio'?"),
        (["--sweep", "filter.ratio=0.1,2"], "`filter.ratio` should be"),
        (["--sweep", "train.epochs=1,2"], "train.epochs is set twice"),
        (["--sweep", "gamma.fgr=1,2", "--select", "gamma.fgr=1,2"], "gamma.fgr is set twice"),
        (["--sweep", "seed=1,2"], "which --seeds takes"),
        (["--select", "method=ce,fgr"], "which --methods takes"),
        (["--select", "gamma.fgr=1,3", "--by", "shifted.ece"], "`by` should be one of validation."),
        (["--select", "gamma.fgr="], "of the form KEY=VALUE"),
        (["--seeds", "3-1"], "`seeds` should be whole numbers"),
        (["--seeds", "4294967296"], "`seed` should be"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_trained(words: list[str], message: str, tmp_path: Path) -> None:
    code, _, stderr = bench(tmp_path / "grid", *words)
    assert (code, message in stderr) == (2, True), stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "grid").exists()


FORGED = ["{", "[]", '{"choices": 3}', '{"choices": [{"method": "ce"}]}', '{"choices": [{"metric": NaN}]}']


@pytest.mark.parametrize("text", FORGED)
def test_a_damaged_selection_is_named_before_anything_is_trained(text: str, tmp_path: Path) -> None:
    (tmp_path / "selection.json").write_text(text)
    code, _, stderr = bench(tmp_path, "--select", "gamma.fgr=1,3")
    assert (code, str(tmp_path / "selection.json") in stderr) == (2, True), stderr
    assert [path.name for path in tmp_path.iterdir()] == ["selection.json"]


def test_a_selection_is_of_what_it_says() -> None:
    choice = {"method": "fgr", "by": "validation.ece", "seed": 0, "chosen": "fgr-gamma.fgr=3-0"}
    candidates = [{"run": f"fgr-gamma.fgr={g}-0", "values": {"gamma.fgr": g}, "metric": g / 10} for g in (1, 3)]
    selection = Selection.model_validate(json.loads(json.dumps({"choices": [choice | {"candidates": candidates}]})))
    assert selection.reason("fgr-gamma.fgr=1-7") == "not chosen by validation.ece, see selection.json"
    assert selection.reason("fgr-gamma.fgr=3-7") is None
    assert selection.reason("ce-0") is None
    assert selection.without(["fgr-gamma.fgr=3-0", "ce-0"]) == selection
    assert selection.without(["fgr-gamma.fgr=1-0"]).choices == ()
    other = {"run": "fgr-gamma.fgr=5-0", "values": {"gamma.fgr": 5}, "metric": 0.1}
    new = Choice.model_validate(choice | {"chosen": "fgr-gamma.fgr=5-0", "candidates": [candidates[1], other]})
    [merged] = selection.with_choices([new]).choices
    assert [merged.hides(f"fgr-gamma.fgr={g}-0") for g in (1, 3, 5)] == [True, True, False], "the first stays hidden"
    assert [one.metric for one in merged.candidates] == [0.3, 0.1, 0.1]
    assert (
        selection.with_choices([new.model_copy(update={"by": "validation.nll"})]).choices[0].candidates[2].metric
        is None
    )
    assert len(selection.with_choices([new.model_copy(update={"candidates": ()})]).choices) == 2


@pytest.mark.slow
def test_a_sweep_over_data_has_a_row_for_each(tmp_path: Path) -> None:
    words = ["--methods", "ce", "--seeds", "0,1", "--sweep", "data.texture_match=0.5,0.9"]
    code, stdout, stderr = bench(tmp_path, *words)
    assert code == 0, stderr
    assert len(runs(tmp_path)) == 4
    assert "| data.texture_match 0.5: ce |" in stdout
    assert "| data.texture_match 0.9: ce |" in stdout
    found = {run: read_record(tmp_path / run / "record.json").config["data"]["texture_match"] for run in runs(tmp_path)}
    assert all(f"data.texture_match={value}-" in run for run, value in found.items())
