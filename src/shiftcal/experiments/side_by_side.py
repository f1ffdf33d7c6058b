"""Several runs of a grid at the same time on one device, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from shiftcal._errors import reason_of
from shiftcal._machine import cores
from shiftcal._progress import Progress, say
from shiftcal.data.dataset import Dataset
from shiftcal.experiments.config import Config, from_dict
from shiftcal.experiments.run import complete
from shiftcal.records import RunRecord

_MPS = "nvidia-cuda-mps-control"


Work = Callable[..., object]  # of a config and a directory; takes `dataset` and `progress`


def complete_one(config: Config, out: Path, *, dataset: Dataset | None = None, progress: bool = False) -> RunRecord:
    """Complete one run, or what is missing of it."""
    return complete(config, out, resume=True, dataset=dataset, progress=progress)


def side_by_side(
    configs: dict[str, Config], out: Path, workers: int, work: Work = complete_one, *, progress: bool = True
) -> dict[str, str]:
    """Do the work of each config in its subdirectory of `out`, `workers` at a time; returns why some failed.

    One that fails stops no other. On a GPU the processes share it under NVIDIA's MPS daemon, where that can be started;
    otherwise they take turns.
    """
    waiting = list(configs.items())
    running: dict[str, _Run] = {}
    failed: dict[str, str] = {}
    with _shared_gpu(), Progress("runs", len(configs), enabled=progress) as bar:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    name, config = waiting.pop(0)
                    running[name] = _Run(work, config, out / name, workers)
                wait([run.process.sentinel for run in running.values()])
                for name in [name for name, run in running.items() if not run.process.is_alive()]:
                    if (reason := running.pop(name).reason()) is not None:
                        failed[name] = reason
                    bar.advance()
                    bar.line(f"{name} {'finished' if reason is None else 'failed'}, {len(running)} running")
        finally:
            for run in running.values():  # each saves a checkpoint first
                run.process.terminate()
            for run in running.values():
                run.process.join()
    return failed


class _Run:
    """One run in a process of its own."""

    def __init__(self, work: Work, config: Config, out: Path, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        threads = max(cores() // workers, 1)
        self.process = context.Process(target=_work, args=(work, config.to_dict(), str(out), threads, sender))
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


def _work(work: Work, config: dict[str, Any], out: str, threads: int, sender: Connection) -> None:
    """Do the work of one config; in a process of its own."""
    torch.set_num_threads(threads)
    try:
        work(from_dict(config), Path(out))
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
