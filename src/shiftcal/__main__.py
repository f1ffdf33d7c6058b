"""Run the command line: `shiftcal`, or python -m shiftcal."""

from __future__ import annotations

import os
import signal
from types import FrameType

_IMPORTS = "<frozen importlib._bootstrap>"


def main() -> None:
    """Run the command line. Ctrl-C during imports ends it at once: a half-imported package fails later."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    from shiftcal.cli import main

    main()


def _interrupted(_: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            os.write(2, b"Stopped before it began.\n")
            os._exit(130)  # nothing is under way yet, and no import sees an exception that it might swallow
        frame = frame.f_back
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
