"""Signals: the first SIGINT, SIGTERM or SIGHUP lets a run write a checkpoint, the second ends it at once.

Ranks have to stop together. They ask one another every few seconds, since whoever started them does not wait long.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from shiftcal import _distributed

_EVERY = 5.0  # seconds
_HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([_HANGUP] if _HANGUP is not None else []))


class Interrupt:
    """Records signals that ask the process to stop, while it is entered; does nothing outside the main thread."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.asked: int | None = None
        self._enabled = enabled and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self._steps, self._wait, self._since = 0, 1, time.monotonic()
        self._alone = not _distributed.is_distributed()

    def __enter__(self) -> Interrupt:
        if self._enabled:
            # Under nohup a lost terminal stops nothing.
            heard = [n for n in _SIGNALS if n != _HANGUP or signal.getsignal(n) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._ask) for number in heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def after_step(self) -> bool:
        """Tell whether to stop after a step; all ranks call it after each, and are told the same."""
        if self._alone:
            return self.asked is not None
        self._steps += 1
        return self._steps >= self._wait and self.now()

    def now(self) -> bool:
        """Tell whether some rank was asked to stop. A signal that arrives during the exchange counts the next time."""
        pace = (time.monotonic() - self._since) / max(self._steps, 1)
        found = _distributed.all_gather_object((self.asked, pace))
        self._steps, self._since = 0, time.monotonic()
        self._wait = max(int(_EVERY / max(pace for _, pace in found)), 1)  # steps, by the slowest
        stop = next((asked for asked, _ in found if asked is not None), None)
        self.asked = self.asked if stop is None else stop
        return stop is not None

    def leave(self) -> None:
        """End as the signal would have ended the process: KeyboardInterrupt, or exit status 143 or 129."""
        _distributed.barrier()  # rank 0 may still be writing, and would be ended with the others
        self._restore()
        if self.asked is not None and self.asked in (signal.SIGTERM, _HANGUP):
            raise SystemExit(128 + self.asked)
        raise KeyboardInterrupt

    def _ask(self, number: int, _: FrameType | None) -> None:
        self.asked = number
        self._restore()  # the next one acts as if nobody listened

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
