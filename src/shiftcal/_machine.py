"""The machine and the software of this process. Never imports torch."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_MALLOC_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had so far; 0 where the system does not tell.

    Linux counts what the starting process had into `ru_maxrss` of a new one, but not into VmHWM.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees: glibc gives large blocks back, and every step pays for new ones.

    Blocks of 256 MiB and more are still given back, in threads other than the main one those of 64 MiB. Another libc
    and settings of the user's (`MALLOC_TRIM_THRESHOLD_` and the like) are left as they are.
    """
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "gnu_get_libc_version") or any(name in os.environ for name in _MALLOC_SETTINGS):
        return
    if any(libc.mallopt(_MMAP_THRESHOLD, size) for size in (256 << 20, 32 << 20)):  # before glibc 2.35 32 MiB at most
        libc.mallopt(_TRIM_THRESHOLD, -1)  # alone it would have every large block given back


def versions() -> dict[str, str | None]:
    """List the versions of Python and of the packages that decide results."""
    return {"python": platform.python_version()} | {n: _version(n) for n in ("shiftcal", "torch", "numpy", "pillow")}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
