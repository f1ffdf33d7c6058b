import os
import pty
import subprocess
import sys

import pytest

from shiftcal._progress import Progress, duration

CODE = """
import time
from shiftcal._progress import Progress
with Progress("fgr", 3) as bar:
    for i in range(3):
        time.sleep(0.3)
        if bar.advance():
            bar.show(f"loss {i}")
    bar.line("done")
"""


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("fgr", 4, done=1) as bar:
        assert not bar.advance()
        bar.show("only on a terminal")
        bar.line("loss 1.0")
        bar.advance(2)
        bar.line("loss 0.5")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("fgr  loss 1.0  ")
    assert first.endswith(" left")
    assert second == "fgr  loss 0.5"


def test_silent_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("fgr", 2, enabled=False) as bar:
        bar.advance()
        bar.line("loss")
    assert capsys.readouterr().out == ""


def test_a_bar_on_a_terminal() -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CODE], stdout=child, env=os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    )
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(parent)
    assert process.wait() == 0
    text = shown.decode()
    assert "100 %" in text
    assert "loss 1" in text
    assert "left" in text


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59.6, 3599, 90000)] == ["0 s", "1 min 00 s", "59 min 59 s", "25 h 00 min"]
