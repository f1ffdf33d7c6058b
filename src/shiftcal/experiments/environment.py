"""The software, the machine and the device of a run, for its record."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from shiftcal._errors import unknown, wrong
from shiftcal._machine import cores, processor, versions


def environment() -> dict[str, Any]:
    """Describe the software and the machine."""
    return {
        "versions": versions(),
        "machine": {"system": platform.system(), "processor": processor(), "cores": cores()},
        "revision": _revision(),
    }


def resolve_device(name: str) -> torch.device:
    """Turn "auto" into a CUDA device where there is one, else the CPU."""
    if name not in ("auto", "cpu", "cuda"):
        raise unknown("device", name, ("auto", "cpu", "cuda"))
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise wrong("device", "'cpu' or 'auto', since torch finds no CUDA device", "'cuda'")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def describe_device(device: torch.device) -> dict[str, Any]:
    """Describe the device that a run used."""
    if device.type == "cuda":
        return {"type": "cuda", "name": torch.cuda.get_device_name(device)}
    return {"type": "cpu", "threads": torch.get_num_threads()}


def _revision() -> str | None:
    """Return the commit of the source tree, marked if it has changes; None where git does not track this file."""
    here = Path(__file__)
    tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*") if tracked else None


def _git(directory: Path, *words: str) -> str | None:
    command = ["git", "-C", str(directory), *words]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
