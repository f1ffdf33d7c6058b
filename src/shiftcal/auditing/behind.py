"""One call at a time in a thread of its own, behind what the caller does next."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Behind:
    """Calls that are made in a thread, one at a time and in order; disabled, at once.

    A call waits for the one before, so that no more than two sets of arguments are held; its error is raised by the
    next one, or at the end.

    Example:
        >>> found = []
        >>> with Behind() as calls:
        ...     calls.call(found.append, 1)
        ...     calls.call(found.append, 2)
        >>> found
        [1, 2]
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._pool = ThreadPoolExecutor(1) if enabled else None
        self._last: Future[None] | None = None

    def __enter__(self) -> Behind:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            self._wait()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Make a call."""
        if self._pool is None:
            function(*arguments)
            return
        self._wait()
        self._last = self._pool.submit(function, *arguments)

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()
