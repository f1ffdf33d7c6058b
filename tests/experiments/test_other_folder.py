"""A run on other data: all of it is measured, nothing is fitted on it, and the run's record stays."""

import json
import shutil
from pathlib import Path

import pytest
from stand_ins import write_coloured_folders
from typer.testing import CliRunner

from shiftcal.cli import app
from shiftcal.experiments.config import load_config
from shiftcal.experiments.other_folder import measure_folder
from shiftcal.experiments.run import complete
from shiftcal.records import find_runs, read_record


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one tree of class folders, and another tree."""
    root = tmp_path_factory.mktemp("elsewhere")
    write_coloured_folders(root / "data", 30)
    write_coloured_folders(root / "other", 7, seed=1)
    words = ["data.name=folder", f"data.root={root / 'data'}", "data.size=16", "evaluation.corruptions=['fog']"]
    words += ["method=ce", "train.epochs=4", "train.batch_size=24"]
    complete(load_config("demo", words), root / "run", progress=False)
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "run", tmp_path / "run")
    shutil.copytree(made / "other", tmp_path / "other")
    return tmp_path


def evaluate(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["eval", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def test_another_folder_is_one_test_set_beside_the_runs_record(place: Path) -> None:
    before = {path.name: path.read_bytes() for path in (place / "run").iterdir() if path.is_file()}
    code, stdout, stderr = evaluate(place / "run", "--data", place / "other")
    assert code == 0, stderr
    out = place / "run" / "eval-other"
    assert {path.name: path.read_bytes() for path in (place / "run").iterdir() if path.is_file()} == before
    assert {path.name for path in out.iterdir()} >= {"record.json", "report.html", "table.md", "reliability.png"}
    run, record = read_record(place / "run" / "record.json"), read_record(out / "record.json")
    assert record.evaluation.clean.n == 21, "all of it"
    assert {cell.n for cell in record.evaluation.shifts} == {21}
    assert record.evaluation.temperatures == run.evaluation.temperatures
    assert record.evaluation.validation == run.evaluation.validation
    assert record.evaluation.scaled_by == {"clean", "shift_aware"}
    seen = record.data
    assert (seen.name, seen.classes, seen.counts) == ("other", run.data.classes, {"test": 21})
    assert seen.preprocessing == run.data.preprocessing
    assert record.config["data"]["root"] == str((place / "other").resolve())
    assert f"measured on 21 images, all of {place / 'other'}, as one test set" in stdout
    assert f"clean {run.evaluation.temperatures['clean']:.2f}" in stdout
    assert f"Record: {out / 'record.json'}" in stdout
    assert find_runs(place / "run") == [place / "run"]


def test_the_temperature_of_the_run_is_applied(place: Path) -> None:
    """Metrics after a temperature come from the run's, also where the folder would give another."""
    path = place / "run" / "record.json"
    content = json.loads(path.read_text())
    content["evaluation"]["temperatures"] |= {"clean": 5.0, "shift_aware": 1.0}
    path.write_text(json.dumps(content))
    record, _ = measure_folder(place / "run", place / "other", progress=False)
    clean = record.evaluation.clean
    assert clean.scaled["shift_aware"].nll == pytest.approx(clean.nll)
    assert clean.scaled["clean"].nll != pytest.approx(clean.nll, rel=0.01)
    assert record.evaluation.temperatures["clean"] == 5.0


def test_test_is_measured_where_there_is_one(place: Path) -> None:
    for part in ("train", "val"):
        shutil.copytree(place / "other" / "red", place / "parts" / part / "red")
    for name in ("red", "blue"):
        shutil.copytree(place / "other" / name, place / "parts" / "test" / name)
    code, stdout, stderr = evaluate(place / "run", "--data", place / "parts", "--set", "evaluation.corruptions=[]")
    assert code == 0, stderr
    assert "measured on 14 images, all of test/ of" in stdout
    shutil.rmtree(place / "parts" / "test")
    code, _, stderr = evaluate(place / "run", "--data", place / "parts")
    assert (code, "a folder with test/, or one tree of class folders" in stderr) == (2, True), stderr


def test_other_content_gets_a_number_and_the_same_stays_where_it_is(place: Path) -> None:
    words = ["evaluation.corruptions=[]"]
    places = [measure_folder(place / "run", place / "other", overrides=words, progress=False)[1] for _ in range(2)]
    (place / "other" / "red" / "0.png").unlink()
    places.append(measure_folder(place / "run", place / "other", overrides=words, progress=False)[1])
    places.append(measure_folder(place / "run", place / "other", overrides=words, progress=False)[1])
    assert [path.name for path in places] == ["eval-other", "eval-other", "eval-other-2", "eval-other-2"]
    assert read_record(places[0] / "record.json").evaluation.clean.n == 21
    assert read_record(places[-1] / "record.json").evaluation.clean.n == 20


def test_classes_are_matched_by_name(place: Path) -> None:
    shutil.rmtree(place / "other" / "blue")  # by their place, green and red would be blue and green
    record, _ = measure_folder(place / "run", place / "other", overrides=["evaluation.corruptions=[]"], progress=False)
    assert record.evaluation.clean.accuracy > 0.8
    (place / "other" / "red").rename(place / "other" / "rouge")
    code, _, stderr = evaluate(place / "run", "--data", place / "other")
    assert (code, "'rouge' (nothing like it)" in stderr or "'rouge' (nearest" in stderr) == (2, True), stderr


@pytest.mark.slow
def test_the_runs_own_data_renews_its_record(made: Path, place: Path) -> None:
    before = read_record(place / "run" / "record.json")
    code, stdout, stderr = evaluate(place / "run", "--data", made / "data")
    assert code == 0, stderr
    assert "its own data again, 9 test images" in stdout
    shutil.copytree(made / "data", place / "elsewhere")
    code, stdout, stderr = evaluate(place / "run", "--data", place / "elsewhere", "--moved")
    assert code == 0, stderr
    again = read_record(place / "run" / "record.json")
    assert again.evaluation.clean.accuracy == before.evaluation.clean.accuracy
    assert (again.evaluation.clean.n, again.data.counts) == (9, {"train": 72, "validation": 9, "test": 9})
    assert not list((place / "run").glob("eval-*"))
    code, _, stderr = evaluate(place / "run", "--moved")
    assert (code, "`moved` should be given with --data FOLDER" in stderr) == (2, True)


def test_several_runs_have_a_record_each_and_one_report(place: Path) -> None:
    (place / "runs").mkdir()
    shutil.move(place / "run", place / "runs" / "ce-0")
    code, _, stderr = evaluate(place / "runs", "--data", place / "other", "--set", "evaluation.corruptions=[]")
    assert code == 0, stderr
    assert (place / "runs" / "ce-0" / "eval-other" / "record.json").is_file()
    assert (place / "runs" / "eval-other" / "report.html").is_file()
    assert find_runs(place / "runs") == [place / "runs" / "ce-0"], "the report is no run"
