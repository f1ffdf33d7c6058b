"""Every example runs, as a user runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
EXAMPLES = TESTS.parent / "examples"
PATHS = (TESTS.parent / "src", TESTS / "torchvision_stub")
# What each prints, and the packages that it needs beside ours.
SAID = {
    "accelerate_loop.py": ("clean: accuracy", "shifted: accuracy"),
    "hf_trainer.py": ("validation ECE", "clean: accuracy", "shifted: accuracy"),
    "lightning_module.py": ("validation ECE", "clean: accuracy", "shifted: accuracy"),
    "timm_loop.py": ("clean: accuracy", "shifted: accuracy"),
    "own_loop.py": ("dfl+views clean  accuracy", "fgr       noisy  accuracy"),
    "own_loop_ddp.py": ("2 ranks  accuracy", "weights equal on all ranks"),
    "audit_timm.py": ("of the time, says", "Under gaussian noise"),
    "onnx_audit_and_gate.py": ("gate: exit code 0 with a limit of 0.9, 1 with one of 0.000001",),
    "new_method.py": ("| poly1-fgr |", "| ce |"),
    "sweep_and_figure.py": (".png: ",),
    "corrupt_folder.py": ("161 files, such as corrupted/",),
    "calibrated_export.py": ("exported and shared differ by", "calibrated  ECE"),
}
NEEDS = {"accelerate_loop.py": "accelerate", "hf_trainer.py": "transformers", "lightning_module.py": "lightning"}
NEEDS |= {"timm_loop.py": "timm", "audit_timm.py": "timm", "onnx_audit_and_gate.py": "onnxscript"}
NEEDS |= {"calibrated_export.py": "onnxscript"}


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd, timeout=300)


def documented(name: str) -> list[str]:
    """List the lines that examples/README.md has of an example's output."""
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^`{re.escape(name)}`\n\n```text\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    return found[1].splitlines() if found else []


def without_numbers(line: str) -> str:
    """Replace numbers, which depend on the machine."""
    return re.sub(r"[\d.]+", "#", line)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAID)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    answer = run(EXAMPLES / name, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    for words in SAID[name]:
        assert words in answer.stdout
    printed = [without_numbers(line) for line in answer.stdout.splitlines()]
    assert all(without_numbers(line) in printed for line in documented(name))
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_every_example_is_listed_and_short() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.glob("*.py"):
        assert f"[{path.name}]({path.name})" in listed, path
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 80, path
    assert {path.name for path in EXAMPLES.glob("*.py")} >= set(SAID)
    assert len(documented("lightning_module.py")) == 3
