"""What the process asks of the machine."""

import ctypes
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest

from shiftcal import _distributed, _machine, cli

MIB = 1 << 20
COUNT = """
import resource, sys
from shiftcal._machine import keep_freed_memory, peak_memory

if "keep" in sys.argv:
    keep_freed_memory()
import torch

def faults():
    torch.zeros(16 << 20).add_(1)  # 64 MiB, more than glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

counts = [faults() for _ in range(21)]  # the first ones make room
print((counts[20] - counts[10]) / 10, peak_memory())
"""
glibc_235 = platform.libc_ver()[0] == "glibc" and tuple(map(int, platform.libc_ver()[1].split("."))) >= (2, 35)


def faults_and_memory(*words: str) -> tuple[float, int]:
    """Count page faults for each of several large tensors, and the most memory that the process had."""
    environment = {name: value for name, value in os.environ.items() if name not in _machine._MALLOC_SETTINGS}
    command = [sys.executable, "-c", COUNT, *words]
    faults, memory = subprocess.check_output(command, env=environment, text=True).split()
    return float(faults), int(memory)


@pytest.mark.skipif(not glibc_235, reason="glibc's memory")
def test_freed_memory_is_kept_and_used_again() -> None:
    (given_back, least), (kept, most) = faults_and_memory(), faults_and_memory("keep")
    assert kept < 0.05 * given_back
    assert most < least + 8 * 64 * MIB, "after 21 tensors of 64 MiB"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return what is set, by a C library that takes everything."""
    made: list[tuple[int, int]] = []

    def mallopt(key: int, value: int) -> int:
        made.append((key, value))
        return 1

    libc = SimpleNamespace(gnu_get_libc_version=None, mallopt=mallopt)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: libc)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in _machine._MALLOC_SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return made


def test_blocks_of_256_mib_are_given_back(settings: list[tuple[int, int]]) -> None:
    _machine.keep_freed_memory()
    assert settings == [(-3, 256 * MIB), (-1, -1)]


@pytest.mark.parametrize(("largest", "expected"), [(32 * MIB, [256 * MIB, 32 * MIB, -1]), (0, [256 * MIB, 32 * MIB])])
def test_an_old_library_takes_less_or_nothing(
    largest: int, expected: list[int], settings: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    libc = ctypes.CDLL(None)
    take = libc.mallopt
    monkeypatch.setattr(libc, "mallopt", lambda key, value: take(key, value) and int(value <= largest))
    _machine.keep_freed_memory()
    assert [value for _, value in settings] == expected


@pytest.mark.parametrize("value", ["1", ""])
@pytest.mark.parametrize(
    "name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"]
)
def test_settings_of_the_user_stay(
    name: str, value: str, settings: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    _machine.keep_freed_memory()
    assert settings == []


def test_another_library_or_system_is_left_alone(
    settings: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ctypes.CDLL(None), "gnu_get_libc_version")
    _machine.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "CDLL", None)
    _machine.keep_freed_memory()
    assert settings == []


@pytest.mark.parametrize("distributed", [False, True])
def test_the_command_line_keeps_it(distributed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: done.append("memory"))
    monkeypatch.setattr(cli, "app", lambda: done.append("command"))
    monkeypatch.setattr(cli, "is_distributed", lambda: distributed)
    monkeypatch.setattr(_distributed, "initialise", lambda: None)
    monkeypatch.setattr(_distributed, "destroy", lambda: None)
    monkeypatch.setattr("warnings.showwarning", None)
    cli.main()
    assert done == ["memory", "command"]
