"""Several runs of a grid at the same time on one device, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from shiftcal._errors import UnfinishedError, reason_of
from shiftcal._machine import cores
from shiftcal._progress import Progress, say
from shiftcal.experiments.config import Config, from_dict
from shiftcal.experiments.run import complete
from shiftcal.records import RECORD, RunRecord, read_record

_MPS = "nvidia-cuda-mps-control"


def complete_side_by_side(
    configs: dict[str, Config], out: Path, workers: int, *, progress: bool = True
) -> list[RunRecord]:
    """Complete every run in its subdirectory of `out`, `workers` at a time, and return the records.

    A run that fails stops no other: `UnfinishedError` names those that did when the others have finished. On a GPU the
    processes share it under NVIDIA's MPS daemon, where that can be started; otherwise they take turns.
    """
    waiting = list(configs.items())
    running: dict[str, _Run] = {}
    found: dict[str, RunRecord] = {}
    failed: dict[str, str] = {}
    with _shared_gpu(), Progress("runs", len(configs), enabled=progress) as bar:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    name, config = waiting.pop(0)
                    running[name] = _Run(config, out / name, workers)
                wait([run.process.sentinel for run in running.values()])
                for name in [name for name, run in running.items() if not run.process.is_alive()]:
                    reason = running.pop(name).reason()
                    if reason is None:
                        found[name] = read_record(out / name / RECORD)
                    else:
                        failed[name] = reason
                    bar.advance()
                    bar.line(f"{name} {'finished' if reason is None else 'failed'}, {len(running)} running")
        finally:
            for run in running.values():  # each saves a checkpoint first
                run.process.terminate()
            for run in running.values():
                run.process.join()
    if failed:
        raise UnfinishedError(failed, len(configs))
    return [found[name] for name in configs]


class _Run:
    """One run in a process of its own."""

    def __init__(self, config: Config, out: Path, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        threads = max(cores() // workers, 1)
        self.process = context.Process(target=_complete, args=(config.to_dict(), str(out), threads, sender))
        self.process.start()
        sender.close()

    def reason(self) -> str | None:
        """Tell why the run failed; None if it did not."""
        self.process.join()
        if self.process.exitcode == 0:
            return None
        with suppress(EOFError):
            return str(self._receiver.recv())
        return f"its process ended with code {self.process.exitcode}"


def _complete(config: dict[str, Any], out: str, threads: int, sender: Connection) -> None:
    """Complete one run; in a process of its own."""
    torch.set_num_threads(threads)
    try:
        complete(from_dict(config), Path(out), resume=True, progress=False)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:  # told to the others' process, which goes on
        sender.send(str(error) if isinstance(error, ValueError | FloatingPointError) else reason_of(error))
        raise SystemExit(1) from None


@contextmanager
def _shared_gpu() -> Iterator[None]:
    """Start NVIDIA's MPS daemon for the time being, if there is a GPU and none runs yet."""
    control = shutil.which(_MPS)
    if not torch.cuda.is_available() or control is None:
        yield
        return
    started = subprocess.run([control, "-d"], capture_output=True, check=False, env=os.environ).returncode == 0
    if not started:
        say("NVIDIA's MPS daemon could not be started (or runs already): the runs may take turns on the GPU.")
    try:
        yield
    finally:
        if started:
            subprocess.run([control], input=b"quit\n", capture_output=True, check=False)
