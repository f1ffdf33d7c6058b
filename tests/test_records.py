import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shiftcal import records

CONFIG = {"method": "fgr", "train": {"epochs": 3, "milestones": (1, 2)}}


def test_claims_a_new_or_empty_directory(tmp_path: Path) -> None:
    records.claim(tmp_path, CONFIG, resume=False)
    records.claim(tmp_path / "a" / "b", CONFIG, resume=True)
    assert json.loads((tmp_path / "a" / "b" / "config.json").read_text())["method"] == "fgr"


def test_the_same_run_needs_resume_and_another_is_refused(tmp_path: Path) -> None:
    records.claim(tmp_path, CONFIG, resume=False)
    (tmp_path / "checkpoints" / "epoch-0001").mkdir(parents=True)
    records.claim(tmp_path, CONFIG, resume=True)
    with pytest.raises(ValueError, match=r"--resume continues a run.*holds this run already"):
        records.claim(tmp_path, CONFIG, resume=False)
    other = {"method": "fgr", "train": {"epochs": 4, "milestones": (1, 2)}}
    before = (tmp_path / "config.json").read_bytes()
    for resume in (True, False):
        with pytest.raises(ValueError, match=r"where another run has train.epochs = 3 instead of 4"):
            records.claim(tmp_path, other, resume=resume)
    assert (tmp_path / "config.json").read_bytes() == before


def test_what_a_run_left_before_its_first_checkpoint_is_in_nobodys_way(tmp_path: Path) -> None:
    records.claim(tmp_path, CONFIG, resume=False)
    (tmp_path / "bad-batch.json").write_text("{}")
    (tmp_path / "checkpoints" / ".epoch-0001.tmp").mkdir(parents=True)
    assert not records.is_free(tmp_path), "in that of anything but a run it is"
    other = CONFIG | {"method": "ce"}
    records.claim(tmp_path, other, resume=False)
    assert json.loads((tmp_path / "config.json").read_text())["method"] == "ce"


def test_one_process_at_a_time_holds_a_directory(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom shiftcal.records import locked\n"
        f"with locked(Path({str(tmp_path)!r})): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    refused = rf"no other process trains. Found `out = {tmp_path}, where process {holder.pid} on .* does`"
    with pytest.raises(ValueError, match=refused), records.locked(tmp_path):
        raise AssertionError
    holder.kill()  # the lock ends with its process, however that ends
    holder.communicate()
    with records.locked(tmp_path):
        assert list(tmp_path.iterdir()), "held"
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(records.fcntl, "lockf", lockf)
    with records.locked(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(
        ValueError, match=r"`out` should be empty, new, or the directory of a run. .*which holds other files"
    ):
        records.claim(tmp_path, CONFIG, resume=True)
    with pytest.raises(ValueError, match=r"`out` should be a directory"):
        records.claim(tmp_path / "thesis.tex", CONFIG, resume=False)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    records.write_json(path, {"a": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        records.write_json(path, {"a": 2})
    assert records.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    records.write_json(path, {"a": 1})
    old = path.stat().st_ino

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            records.write_json(path, {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]
    records.write_json(path, {"a": 3})
    assert path.stat().st_ino != old, "replaced by a new file, not written over"


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        records.write_json(tmp_path / "x.json", {"a": float("nan")})
    (tmp_path / "x.json").write_text('{"a": 1')
    with pytest.raises(ValueError, match=r"`path` should be a whole JSON file. .*x.json"):
        records.read_json(tmp_path / "x.json")


def test_what_a_killed_process_left_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".config.json.123.tmp").write_text("{")
    records.claim(tmp_path, CONFIG, resume=False)


def test_records_that_are_none(tmp_path: Path) -> None:
    for content in ("[]", "{}"):
        (tmp_path / "record.json").write_text(content)
        with pytest.raises(ValueError, match=r"`path` should be a .*record.json"):
            records.load_records(tmp_path)


def test_finds_runs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        records.claim(tmp_path / name, CONFIG, resume=False)
    assert [p.name for p in records.find_runs(tmp_path)] == ["a", "b"]
    assert records.find_runs(tmp_path / "a") == [tmp_path / "a"]
    with pytest.raises(ValueError, match=r"`directory` should be one with finished runs"):
        records.load_records(tmp_path)
    record = dict.fromkeys(("schema", "method", "seed", "config", "history", "evaluation"), 1)
    records.write_json(tmp_path / "a" / "record.json", record)
    with pytest.warns(UserWarning, match=r"Left out, since they are not finished: b\."):
        assert records.load_records(tmp_path) == [record]
    for wrong in (tmp_path / "none", tmp_path / "a" / "config.json"):
        with pytest.raises(ValueError, match=r"`directory` should be the directory of a run"):
            records.find_runs(wrong)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"without config.json"):
        records.find_runs(tmp_path / "empty")


def test_environment_says_what_ran() -> None:
    environment = records.environment()
    assert environment["versions"]["torch"]
    assert environment["machine"]["cores"] >= 1
    assert json.dumps(environment)


def test_records_and_reports_do_not_import_torch() -> None:
    code = "import sys, shiftcal.report.page, shiftcal.report.figures, shiftcal.cli; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
