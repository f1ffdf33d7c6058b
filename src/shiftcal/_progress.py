"""Progress on anything that takes more than two seconds: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

_SETTLED = 10.0  # seconds after which a pace means something
_LONG = 1800.0  # seconds beyond which advice is given


class Progress:
    """Show how far a task is, what it measures and how long it will take.

    On a terminal it is a rich progress bar, redrawn a few times a second. Elsewhere `line` prints plain lines, and
    `advance` one: how long a long task will take, as soon as that can be told.
    """

    def __init__(self, title: str, total: int, *, done: int = 0, enabled: bool = True, advice: str = "") -> None:
        self.title, self.total, self.done = title, total, done
        self._enabled, self._started, self._done_before, self._drawn = enabled, time.monotonic(), done, 0.0
        self._said, self._advice = False, advice
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._enabled and sys.stdout.isatty():
            self._start_bar()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):  # the terminal may be gone
                self._bar.stop()

    def advance(self, steps: int = 1) -> bool:
        """Count steps as done; tell whether a bar is shown whose text is a quarter of a second old."""
        self.done += steps
        self._say_time_left()
        if self._bar is None:
            return False
        self._bar.update(self._task, completed=self.done)
        now = time.monotonic()
        if now - self._drawn < 0.25:
            return False
        self._drawn = now
        return True

    def _say_time_left(self) -> None:
        """Say once, some seconds after the start, how long a task will take, with advice if that is long."""
        if self._said or not self._enabled or time.monotonic() - self._started < _SETTLED:
            return
        self._said, left = True, self.time_left()
        advice = f". {self._advice}" if self._advice and left > _LONG else ""
        if self._bar is not None:
            if advice:
                self._bar.console.print(f"about {duration(left)} left{advice}", markup=False, highlight=False)
        elif left > 60:
            say(f"{self.title}  about {duration(left)} left{advice}")

    def show(self, text: str) -> None:
        """Change the text beside the bar."""
        if self._bar is not None:
            self._bar.update(self._task, text=text)

    def line(self, text: str) -> None:
        """Print a plain line with the time left, where there is no bar; beside a bar, show it as the text."""
        if self._bar is not None:
            self.show(text)
        elif self._enabled:
            left = "" if self.done >= self.total else f"  {duration(self.time_left())} left"
            say(f"{self.title}  {text}{left}")

    def time_left(self) -> float:
        """Estimate the seconds left from the pace so far."""
        done = max(self.done - self._done_before, 1)
        return (time.monotonic() - self._started) / done * (self.total - self.done)

    def _start_bar(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20, finished_style="bar.complete"),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            TextColumn("left"),
            TextColumn("{task.fields[text]}", markup=False),
        )
        bar = Progress(*columns, refresh_per_second=4)
        self._task = bar.add_task(self.title, total=self.total, completed=self.done, text="")
        bar.start()
        self._bar = bar


def say(text: str) -> None:
    """Print a line. Where standard output cannot be written any more, the work continues without it."""
    try:
        print(text, flush=True)
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        with suppress(OSError):
            print(f"Standard output cannot be written, the work continues without it: {error}", file=sys.stderr)


def duration(seconds: float) -> str:
    """Write seconds as people read them.

    Example:
        >>> duration(5), duration(83), duration(7380)
        ('5 s', '1 min 23 s', '2 h 03 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
