import subprocess
import sys
from pathlib import Path

import pytest

import shiftcal


def test_every_public_name_resolves_and_is_listed() -> None:
    assert dir(shiftcal) == sorted(shiftcal.__all__)
    for name in shiftcal.__all__:
        assert getattr(shiftcal, name) is not None
    assert set(shiftcal.__all__) == set(shiftcal._NAMES) | set(shiftcal._MODULES)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = shiftcal.nothing


def test_importing_the_package_costs_nothing() -> None:
    code = "import sys, shiftcal; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


WITHOUT_POSIX = """
import signal, sys
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in ("SIGHUP", "SIGCHLD", "SIGUSR1", "SIGKILL", "SIGALRM"):
    delattr(signal, name)
import shiftcal, shiftcal.cli, shiftcal.report.page, shiftcal.report.audit, shiftcal.records.audit
assert "torch" not in sys.modules
from shiftcal._machine import cores, peak_memory
assert cores() >= 1 and peak_memory() >= 0
from shiftcal.cli import app
app(sys.argv[1:])
"""


def without_posix(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT_POSIX, *words], capture_output=True, text=True, check=False)


def test_the_report_and_the_command_line_need_no_posix_modules() -> None:
    answer = without_posix("--help")
    assert (answer.returncode, "audit" in answer.stdout) == (0, True), answer.stderr


@pytest.mark.slow
def test_a_run_needs_no_posix_modules(tmp_path: Path) -> None:
    """Torch's own imports are not ours: it is imported before they are gone."""
    sizes = ["data.train=64", "data.validation=32", "data.test=32", "train.epochs=1", "evaluation.corruptions=[]"]
    words = ["train", "demo", *(word for item in sizes for word in ("--set", item)), "--out", str(tmp_path / "run")]
    code = WITHOUT_POSIX.replace("import signal, sys", "import signal, sys, torch, torch.utils.data, PIL.Image, numpy")
    code = code.replace('assert "torch" not in sys.modules', "")
    command = [sys.executable, "-c", code, *words]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "run" / "record.json").is_file()
    report = without_posix("report", str(tmp_path / "run"), "--out", str(tmp_path / "report"))
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "report" / "report.html").is_file()
