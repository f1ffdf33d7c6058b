"""Ctrl-C at any time, workers that are killed, and want of memory: one line, and how to continue."""

import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from stand_ins import write_class_folders

from shiftcal._errors import WorkerError
from shiftcal.cli._shared import errors_in_one_line
from shiftcal.data.files.decode import Decoder


def started(*words: str) -> subprocess.Popen[str]:
    def listen() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    return subprocess.Popen(
        [sys.executable, "-m", "shiftcal", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        preexec_fn=listen,
    )  # fmt: skip


def test_ctrl_c_while_torch_is_imported(tmp_path: Path) -> None:
    process = started("train", "demo", "--out", str(tmp_path / "run"))
    maps = Path(f"/proc/{process.pid}/maps")
    deadline = time.monotonic() + 60
    while "libtorch_cpu" not in maps.read_text():  # the library is loaded at the beginning of the import
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "Stopped before it began.\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.15, 0.5, 0.9, 1.4])
def test_ctrl_c_in_the_first_second(delay: float, tmp_path: Path) -> None:
    """Before our own first line Python answers itself, with its own traceback."""
    process = started("train", "demo", "--out", str(tmp_path / "run"))
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (130, 1, -signal.SIGINT)
    assert "shiftcal/cli" not in said, said


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_worker_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch raises from the handler of a signal: in the iterator, or wherever the program is."""
    write_class_folders(tmp_path, 1, 40)
    decoder = Decoder(sorted((tmp_path / "kind0").iterdir()), 16, "crop", workers=1)
    batches = decoder.batches(torch.arange(40).split(1))
    next(batches)
    (worker,) = multiprocessing.active_children()
    with pytest.raises(Exception) as caught, errors_in_one_line(tmp_path, "shiftcal train … --resume"):  # noqa: PT012
        worker.kill()
        list(batches)
    assert type(caught.value).__name__ == "Exit"
    said = capsys.readouterr().err
    assert said.startswith("A process that decodes images ended: ")
    assert said.endswith(
        "(--set data.workers=N). There is no checkpoint yet. Continue with: shiftcal train … --resume\n"
    )


def test_want_of_memory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def allocate() -> None:
        torch.empty(2**55, dtype=torch.uint8)

    def hoard() -> None:
        raise MemoryError

    for fail in (allocate, hoard):
        with pytest.raises(Exception) as caught, errors_in_one_line(tmp_path, "shiftcal train … --resume"):
            fail()
        assert type(caught.value).__name__ == "Exit"
        said = capsys.readouterr().err
        assert said.startswith("There is not enough memory: ")
        assert said.endswith("There is no checkpoint yet. Continue with: shiftcal train … --resume\n")
        assert said.count("\n") == 1


def test_torchs_error_for_a_lost_worker_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lose() -> None:
        raise RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed. \nMore of it.")

    with pytest.raises(Exception) as caught, errors_in_one_line(tmp_path):
        lose()
    assert type(caught.value).__name__ == "Exit"
    expected = "A process that decodes images ended: DataLoader worker (pid 3) is killed by signal: Killed. Was there"
    assert capsys.readouterr().err.startswith(expected)
    assert WorkerError.told_by(RuntimeError("CUDA error")) is None
