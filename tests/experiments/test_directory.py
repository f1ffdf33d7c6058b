"""The directory of a run: whose it is, and one process at a time in it."""

import errno
import fcntl
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shiftcal._io import is_free
from shiftcal._lock import locked
from shiftcal.experiments import directory

CONFIG = {"method": "fgr", "train": {"epochs": 3, "milestones": (1, 2)}}


def test_claims_a_new_or_empty_directory(tmp_path: Path) -> None:
    directory.claim(tmp_path, CONFIG, resume=False)
    directory.claim(tmp_path / "a" / "b", CONFIG, resume=True)
    assert json.loads((tmp_path / "a" / "b" / "config.json").read_text())["method"] == "fgr"


def test_the_same_run_needs_resume_and_another_is_refused(tmp_path: Path) -> None:
    directory.claim(tmp_path, CONFIG, resume=False)
    (tmp_path / "checkpoints" / "epoch-0001").mkdir(parents=True)
    directory.claim(tmp_path, CONFIG, resume=True)
    with pytest.raises(ValueError, match=r"--resume continues a run.*holds this run already"):
        directory.claim(tmp_path, CONFIG, resume=False)
    other = {"method": "fgr", "train": {"epochs": 4, "milestones": (1, 2)}}
    before = (tmp_path / "config.json").read_bytes()
    for resume in (True, False):
        with pytest.raises(ValueError, match=r"where another run has train.epochs = 3 instead of 4"):
            directory.claim(tmp_path, other, resume=resume)
    assert (tmp_path / "config.json").read_bytes() == before


def test_what_a_run_left_before_its_first_checkpoint_is_in_nobodys_way(tmp_path: Path) -> None:
    directory.claim(tmp_path, CONFIG, resume=False)
    (tmp_path / "bad-batch.json").write_text("{}")
    (tmp_path / "checkpoints" / ".epoch-0001.tmp").mkdir(parents=True)
    assert not is_free(tmp_path), "in that of anything but a run it is"
    other = CONFIG | {"method": "ce"}
    directory.claim(tmp_path, other, resume=False)
    assert json.loads((tmp_path / "config.json").read_text())["method"] == "ce"


def test_one_process_at_a_time_holds_a_directory(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom shiftcal._lock import locked\n"
        f"with locked(Path({str(tmp_path)!r})): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    refused = rf"nobody else is using. Found `out = {tmp_path}, in use by process {holder.pid} on .*`"
    with pytest.raises(ValueError, match=refused), locked(tmp_path):
        raise AssertionError
    holder.kill()  # the lock ends with its process, however that ends
    holder.communicate()
    with locked(tmp_path):
        assert list(tmp_path.iterdir()), "held"
    assert not list(tmp_path.iterdir())


def test_a_relative_path_is_held_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from pathlib import Path\nfrom shiftcal._lock import locked\nwith locked(Path('run')): print('held')"
    monkeypatch.chdir(tmp_path)
    with locked(Path("run")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "a directory that nobody else is using" in done.stderr
        assert done.stdout == ""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_lock_that_cannot_be_written_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", full)
        with pytest.raises(OSError, match="No space left"), locked(tmp_path):
            raise AssertionError
    with locked(tmp_path):
        pass


def test_one_caller_in_a_process_holds_a_directory(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(ValueError, match="in use by this process"), locked(tmp_path / "."):
            raise AssertionError
        assert list(tmp_path.iterdir()), "the first one still holds it"
    with locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    with locked(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(
        ValueError, match=r"`out` should be empty, new, or the directory of a run. .*which holds other files"
    ):
        directory.claim(tmp_path, CONFIG, resume=True)
    with pytest.raises(ValueError, match=r"`out` should be a directory"):
        directory.claim(tmp_path / "thesis.tex", CONFIG, resume=False)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_killed_process_left_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".config.json.123.tmp").write_text("{")
    directory.claim(tmp_path, CONFIG, resume=False)


def test_no_two_processes_hold_a_directory_however_they_hurry(tmp_path: Path) -> None:
    """The lock's file comes and goes while others wait for it."""
    code = f"""
import os, time
from pathlib import Path
from shiftcal._lock import locked
place, marker, held, both = Path({str(tmp_path / "run")!r}), {str(tmp_path / "marker")!r}, 0, 0
end = time.monotonic() + 2
while time.monotonic() < end:
    try:
        with locked(place):
            held += 1
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                both += 1
            else:
                os.unlink(marker)
    except ValueError:
        pass
print(held, both)
"""
    racing = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counts = [tuple(map(int, process.communicate()[0].split())) for process in racing]
    assert sum(held for held, _ in counts) > 100
    assert sum(both for _, both in counts) == 0


def test_what_was_deleted_during_a_run_is_written_again_and_another_run_is_not_written_into(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="config.json was deleted during the run"):
        directory.claim_again(tmp_path / "gone", CONFIG)
    assert json.loads((tmp_path / "gone" / "config.json").read_text()) == json.loads(json.dumps(CONFIG))
    directory.claim_again(tmp_path / "gone", CONFIG)
    with pytest.raises(ValueError, match=r"config.json became that of another run with method = fgr instead of ce"):
        directory.claim_again(tmp_path / "gone", CONFIG | {"method": "ce"})


def test_the_evaluation_may_change_until_it_is_done(tmp_path: Path) -> None:
    directory.claim(tmp_path, CONFIG | {"evaluation": {"bins": 15}}, resume=False)
    (tmp_path / "checkpoints" / "epoch-0001").mkdir(parents=True)
    other = CONFIG | {"evaluation": {"bins": 10}}
    directory.claim(tmp_path, other, resume=True)
    assert json.loads((tmp_path / "config.json").read_text())["evaluation"] == {"bins": 10}
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(ValueError, match=r"shiftcal eval DIR --set.*evaluated with evaluation.bins = 10 instead of 15"):
        directory.claim(tmp_path, CONFIG | {"evaluation": {"bins": 15}}, resume=True)
