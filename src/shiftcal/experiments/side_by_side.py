"""Several runs of a grid at the same time on one device, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from shiftcal._errors import UnfinishedError, told
from shiftcal._machine import cores, keep_freed_memory
from shiftcal._progress import Progress, say
from shiftcal.experiments.config import Config, from_dict
from shiftcal.experiments.run import complete
from shiftcal.experiments.warmup import followers_of, hand_over
from shiftcal.records import RECORD, RunRecord, read_record

_MPS = "nvidia-cuda-mps-control"


def complete_side_by_side(
    configs: dict[str, Config], out: Path, workers: int, *, share_warmup: bool = True, progress: bool = True
) -> list[RunRecord]:
    """Complete every run in its subdirectory of `out`, `workers` at a time, and return the records.

    A run that fails stops no other: `UnfinishedError` names those that did when the others have finished. On a GPU the
    processes share it under NVIDIA's MPS daemon, where that can be started; otherwise they take turns. With
    `share_warmup`, runs that may continue from the warm-up of one that is running wait for it; others go first.
    """
    waiting = dict(configs)
    running: dict[str, _Run] = {}
    found: dict[str, RunRecord] = {}
    failed: dict[str, str] = {}
    with _shared_gpu(), Progress("runs", len(configs), enabled=progress) as bar:
        try:
            while waiting or running:
                while len(running) < workers and (name := _next(waiting, running)) is not None:
                    followers = followers_of(name, waiting, out) if share_warmup else {}
                    running[name] = _Run(name, waiting.pop(name), out, workers, followers)
                wait([handle for run in running.values() for handle in run.handles])
                for run in running.values():
                    run.listen()
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


def _next(waiting: Mapping[str, Config], running: Mapping[str, _Run]) -> str | None:
    """Return the first run that waits for nothing; None if all wait for a warm-up."""
    led = {name for run in running.values() for name in run.followers}
    return next((name for name in waiting if name not in led), None)


class _Run:
    """One run in a process of its own.

    Attributes:
        process: The process.
        followers: The runs that wait for its warm-up.
    """

    def __init__(self, name: str, config: Config, out: Path, workers: int, followers: Mapping[str, Config]) -> None:
        context = multiprocessing.get_context("spawn")
        self._receiver, sender = context.Pipe(duplex=False)
        threads = max(cores() // workers, 1)
        trees = {other: one.to_dict() for other, one in followers.items()}
        args = (name, config.to_dict(), str(out), threads, trees, sender)
        self.process = context.Process(target=_complete, args=args)
        self.process.start()
        sender.close()
        self.followers = set(followers)
        self._reason: str | None = None
        self._open = True

    @property
    def handles(self) -> list[Any]:
        """What to wait for: that it says something, or ends."""
        return [self.process.sentinel, *([self._receiver] if self._open else [])]

    def listen(self) -> None:
        """Take in what the run has said: that it has handed over its warm-up, or why it failed."""
        try:
            while self._open and self._receiver.poll():
                self._reason = self._receiver.recv()
                self.followers = set()
        except EOFError:
            self._open = False

    def reason(self) -> str | None:
        """Tell why the run failed; None if it did not."""
        self.process.join()
        self.listen()
        if self.process.exitcode == 0:
            return None
        return self._reason or f"its process ended with code {self.process.exitcode}"


def _complete(
    name: str, config: dict[str, Any], out: str, threads: int, followers: dict[str, Any], sender: Connection
) -> None:
    """Complete one run; in a process of its own."""
    torch.set_num_threads(threads)
    keep_freed_memory()

    def after_warmup(path: Path) -> None:
        hand_over(path, {other: from_dict(tree) for other, tree in followers.items()}, Path(out), by=name)
        sender.send(None)

    try:
        after = after_warmup if followers else None
        complete(from_dict(config), Path(out) / name, resume=True, progress=False, after_warmup=after)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:  # told to the others' process, which goes on
        sender.send(told(error))
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
