"""Damaged records: named, skipped and counted, or refused in one line; never a traceback, never markup."""

import contextlib
import io
import json
import random
from pathlib import Path

import pytest
from faults.mutations import damaged_bytes, damaged_tree
from made_records import plain, record

from shiftcal._errors import ParameterError
from shiftcal.records import load_finished, write_grid
from shiftcal.report.page import write_report
from shiftcal.report.table import markdown
from shiftcal.report.terminal import print_table

PUBLISHED = Path(__file__).parents[2] / "results" / "demo" / "runs"


def outcome(place: Path) -> str:
    """Do what `shiftcal report` does, but for figures, and tell how it ended."""
    try:
        records, left_out = load_finished(place)
        with contextlib.redirect_stdout(io.StringIO()):
            print_table(records)
        markdown(records)
    except ParameterError as error:
        return "refused" if "\n" not in str(error) else "refused in several lines"
    return "skipped" if left_out else "shown"


@pytest.mark.filterwarnings("ignore:Left out")
def test_random_damage_to_a_record(tmp_path: Path) -> None:
    rng, ends = random.Random(0), []
    published = [json.loads((path / "record.json").read_text()) for path in sorted(PUBLISHED.iterdir())[:2]]
    for number in range(150):
        good, bad = published if number % 5 == 0 else (plain("ce", 0, 0.1), plain("fgr", 0, 0.05))
        for name, tree in (("a", good), ("b", damaged_tree(bad, rng))):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "record.json").write_text(json.dumps(tree), errors="surrogatepass")
        ends.append(outcome(tmp_path))
    assert {"shown", "skipped"} <= set(ends) <= {"shown", "skipped", "refused"}


@pytest.mark.filterwarnings("ignore:Left out")
def test_random_damage_to_the_bytes_of_a_record_and_of_a_grid(tmp_path: Path) -> None:
    rng, whole = random.Random(1), (PUBLISHED / "augmix-seed0" / "record.json").read_bytes()
    for place in (tmp_path / "runs" / "a", tmp_path / "runs" / "b", tmp_path / "grid"):
        place.mkdir(parents=True)
    (tmp_path / "runs" / "a" / "record.json").write_bytes(whole)
    for name in ("records.jsonl", "records.jsonl.xz"):
        write_grid(tmp_path / name, [record("ce", 0, 0.1), record("fgr", 0, 0.1)])
    for _ in range(60):
        (tmp_path / "runs" / "b" / "record.json").write_bytes(damaged_bytes(whole, rng))
        assert outcome(tmp_path / "runs") in ("refused", "skipped", "shown")
        for name in ("records.jsonl", "records.jsonl.xz"):
            (tmp_path / "grid" / name).write_bytes(damaged_bytes((tmp_path / name).read_bytes(), rng))
            assert outcome(tmp_path / "grid" / name) in ("refused", "skipped", "shown")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Left out")
def test_random_damage_and_the_whole_report(tmp_path: Path) -> None:
    rng = random.Random(2)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "record.json").write_text(json.dumps(plain("ce", 0, 0.1)))
    for _ in range(150):
        damaged = damaged_tree(plain("fgr", 0, 0.05), rng)
        (tmp_path / "b" / "record.json").write_text(json.dumps(damaged), errors="surrogatepass")
        try:
            records, left_out = load_finished(tmp_path)
            write_report(tmp_path, records, "title", left_out)
        except ParameterError:
            continue


HOSTILE = ["[/]", "[bold red]x", r"$\frac$", "<script>alert(1)</script>", "a|b", "\x1b[2J\x07", "two\nlines", "_x_*y*"]


@pytest.mark.parametrize("name", HOSTILE)
def test_text_is_escaped_for_its_medium(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shifts = record("ce", 0, 0.1).evaluation.shifts
    hostile = [cell.model_copy(update={"shift": name}) for cell in shifts[:2]]
    made = [
        record(
            method, 0, 0.1, shifts=[cell.model_dump() for cell in hostile], other_tests={name: shifts[0].model_dump()}
        )
        for method in ("ce", name)
    ]
    print_table(made)
    printed = capsys.readouterr().out
    assert "\x1b[2J" not in printed
    assert "\x07" not in printed
    rows = [line for line in markdown(made).splitlines() if line.startswith("|")]
    assert all(line.replace(r"\|", "").count("|") == 8 for line in rows)
    page = write_report(tmp_path, made, name, {name: name}).read_text()
    assert "<script>alert" not in page
    assert "Left out" in page


def test_hostile_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([record("[/]", 0, 0.1), record("[bold]x", 0, 0.2)])
    printed = capsys.readouterr().out
    assert "[/]" in printed
    assert "[bold]x" in printed


def test_damage_is_named_and_counted(tmp_path: Path) -> None:
    for name, content in (("a", plain("ce", 0, 0.1)), ("b", {"schema": 999}), ("c", plain("fgr", 0, float("nan")))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps(content))
    with pytest.warns(UserWarning, match=r"Left out, 2 of 3 runs: b: damaged \(.*; c: damaged \(.*finite"):
        records, left_out = load_finished(tmp_path)
    assert [found.method for found in records] == ["ce"]
    assert list(left_out) == ["b", "c"]
