"""Records: one model for writing and reading, also for those that earlier versions wrote."""

import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
from made_records import plain, record

from shiftcal import records
from shiftcal.experiments.environment import environment
from shiftcal.records import SCHEMA, load_records, parse_record, read_grid, write_grid, write_record

RESULTS = Path(__file__).parents[1] / "results"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = record("fgr", 3, 0.05)
    write_record(tmp_path / "record.json", made)
    assert records.read_record(tmp_path / "record.json") == made
    assert json.loads((tmp_path / "record.json").read_text())["schema"] == SCHEMA


def test_metrics_by_key() -> None:
    cell = record("fgr", 0, 0.05).evaluation.shifts[1]
    assert (cell.value("ece"), cell.value("clean/ece")) == (0.1, 0.1)
    assert cell.value("shift_aware/ece") is None
    assert cell.value("clean/nll") is None


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("record.json")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_committed_record_loads(path: Path) -> None:
    found = records.read_record(path)
    assert found.schema_version == SCHEMA
    assert found.evaluation.clean.value("clean/ece") is not None
    assert len(found.history) > 0


def test_a_record_of_the_first_schema_keeps_its_numbers() -> None:
    """Written by hand from what the first version wrote."""
    row = {"accuracy": 0.9, "nll": 0.5, "brier": 0.1, "ece": 0.2, "mce": 0.3, "classwise_ece": 0.04, "ece_ts": 0.11}
    bins = {"count": [1.0, 2.0], "confidence": [0.3, 0.8], "accuracy": [0.0, 1.0]}
    old = plain("ce", 0, 0.1) | {"schema": 1}
    old["evaluation"] = {
        "temperature": 1.7,
        "validation": row,
        "id": row,
        "id_is_validation": True,
        "shifted": row,
        "shifts": [row | {"shift": "fog", "severity": 2}],
        "besides": {"val": row},
        "reliability": {"id": bins, "shifted": None},
    }
    found = parse_record(old | {"before": old["evaluation"]}, "here").evaluation
    assert found.temperatures == {"clean": 1.7}
    assert (found.clean.ece, found.clean.value("clean/ece"), found.clean.smooth_ece) == (0.2, 0.11, None)
    assert (found.shifts[0].shift, found.shifts[0].severity, found.shifts[0].n) == ("fog", 2, None)
    assert found.other_tests["val"].ece == 0.2
    assert found.clean_is_validation
    assert found.reliability.clean.count == (1, 2)


def test_a_grid_in_one_file_is_rounded_and_read_as_directories_are(tmp_path: Path) -> None:
    made = [record("ce", 0, 1 / 30), record("fgr", 0, 0.05)]
    for name in ("records.jsonl", "records.jsonl.xz"):
        write_grid(tmp_path / name, made)
        found = read_grid(tmp_path / name)
        assert found[1] == made[1]
        assert found[0].evaluation.shifted.ece == 0.033333, "five digits"
        assert load_records(tmp_path / name) == found
        assert load_records(tmp_path) == found
        (tmp_path / name).unlink()
    (tmp_path / "records.jsonl.xz").write_bytes(lzma.compress(b"{"))
    with pytest.raises(ValueError, match=r"finished runs.*records.jsonl.xz|with line 1: damaged"):
        load_records(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="which has none"):
        read_grid(tmp_path / "empty.jsonl")


def test_a_grid_in_several_files(tmp_path: Path) -> None:
    def methods() -> list[str]:
        return [one.method for one in load_records(tmp_path)]

    write_grid(tmp_path / "records-later.jsonl", [record("ce", 0, 0.1), record("fgr", 0, 0.1)])
    assert records.grids_in(tmp_path) == [], "they add to one that is there"
    write_grid(tmp_path / "records.jsonl.xz", [record("dfl", 0, 0.1)])
    assert methods() == ["dfl", "ce", "fgr"]
    write_grid(tmp_path / "records.jsonl", [record("ls", 0, 0.1)])
    assert methods() == ["ls", "ce", "fgr"], "plain and compressed are one, of which the plain one counts"
    write_grid(tmp_path / "records.jsonl", [record("dfl", 0, 0.1)])
    for name in ("notes-records.jsonl", "records.old.jsonl", "records-later.jsonl.bak"):
        (tmp_path / name).write_text("no file of records")
    assert methods() == ["dfl", "ce", "fgr"]
    (tmp_path / "records-0.jsonl.xz").write_bytes(b"damaged")
    (tmp_path / "records-later.jsonl").write_text("{\n")
    with pytest.warns(UserWarning, match=r"Left out, 2 of 3 runs: records-0.*; records-later\.jsonl, line 1: damaged"):
        assert methods() == ["dfl"]


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 999},
        {"schema": None},
        {"seed": "a"},
        {"method": None},
        {"history": [{"epoch": 1}]},
        {"evaluation": {}},
        {"evaluation": []},
        {"config": 3},
        {"seconds": {"train": float("nan")}},
    ],
    ids=str,
)
def test_what_is_no_record_is_named(change: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps(plain("ce", 0, 0.1) | change))
    with pytest.raises(ValueError, match=r"`record` should be a run's record. .*record.json") as caught:
        load_records(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("The command that made the run makes it again, with --resume.")


def test_files_that_are_none(tmp_path: Path) -> None:
    for content in ("[]", "{}", '{"schema": 1}', "3"):
        (tmp_path / "record.json").write_text(content)
        with pytest.raises(ValueError, match=r"`record` should be a run's record"):
            load_records(tmp_path)


def test_finds_runs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert [p.name for p in records.find_runs(tmp_path)] == ["a", "b"]
    assert records.find_runs(tmp_path / "a") == [tmp_path / "a"]
    with pytest.raises(ValueError, match=r"`directory` should be one with finished runs"):
        load_records(tmp_path)
    made = record("ce", 0, 0.1)
    write_record(tmp_path / "a" / "record.json", made)
    with pytest.warns(UserWarning, match=r"Left out, 1 of 2 runs: b: not finished\."):
        assert load_records(tmp_path) == [made]
    for wrong in (tmp_path / "none", tmp_path / "a" / "config.json"):
        with pytest.raises(ValueError, match=r"`directory` should be the directory of a run"):
            records.find_runs(wrong)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"without config.json"):
        records.find_runs(tmp_path / "empty")


def test_environment_says_what_ran() -> None:
    found = environment()
    assert found["versions"]["torch"]
    assert found["machine"]["cores"] >= 1
    assert json.dumps(found)


def test_records_and_reports_do_not_import_torch() -> None:
    code = "import sys, shiftcal.report.page, shiftcal.report.figures, shiftcal.cli; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_each_set_of_an_old_record_stays_where_it_was() -> None:
    names = ("validation", "id", "shifted")
    cells = {name: {"accuracy": number / 10, "ece_ts": 0.1} for number, name in enumerate(names)}
    bins = {"count": [1], "confidence": [0.5], "accuracy": [1.0]}
    old = {**cells, "temperature": 1.0, "shifts": [], "reliability": {"id": bins, "shifted": bins}}
    new = records.upgraded({"schema": 1, "evaluation": old})["evaluation"]
    assert [new[name]["accuracy"] for name in ("validation", "clean", "shifted")] == [0.0, 0.1, 0.2]


def test_directories_of_runs_among_runs_are_told(tmp_path: Path) -> None:
    for place in ("a", "a/eval-other", "grid/b"):
        (tmp_path / place).mkdir(parents=True)
        write_record(tmp_path / place / "record.json", record("ce", 0, 0.1))
    with pytest.warns(UserWarning, match=r"directories of runs themselves: \S*grid\. Name them too"):
        found = load_records(tmp_path)
    assert len(found) == 1
