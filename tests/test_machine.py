"""What the process asks of the machine."""

import subprocess
import sys

import pytest

from shiftcal import cli

COUNT = """
import resource, sys
from shiftcal._machine import keep_freed_memory

if "keep" in sys.argv:
    keep_freed_memory()
import torch

def faults():
    torch.zeros(16 << 20).add_(1)  # 64 MiB, more than glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

counts = [faults() for _ in range(21)]  # the first ones make room
print((counts[20] - counts[10]) / 10)
"""


def faults_a_step(*words: str) -> float:
    done = subprocess.run([sys.executable, "-c", COUNT, *words], capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's memory")
def test_freed_memory_is_kept() -> None:
    given_back, kept = faults_a_step(), faults_a_step("keep")
    assert kept < 0.05 * given_back


def test_the_command_line_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: asked.append(True))
    monkeypatch.setattr(cli, "app", lambda: None)
    monkeypatch.setattr("warnings.showwarning", None)
    cli.main()
    assert asked == [True]
