"""Stopping politely: the first SIGINT or SIGTERM lets a run write a checkpoint, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Remembers that the process was asked to stop, while it is entered; does nothing outside the main thread."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.asked: int | None = None
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if self._enabled:
            self._before = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def leave(self) -> None:
        """End as the signal would have ended the process: KeyboardInterrupt, or exit status 143."""
        self._restore()
        if self.asked == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt

    def _ask(self, number: int, _: FrameType | None) -> None:
        self.asked = number
        self._restore()  # the next one acts as if nobody listened

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
