"""The attack repeated: commands that are killed at random, and a disk that is full. Nothing is lost."""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
KILLS = 12  # of each of five commands
SMALL = ["data.train=300", "data.validation=60", "data.test=60", "train.batch_size=20", "evaluation.corruptions=[]"]
PLAIN = [sys.executable, "-m", "shiftcal"]
RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "shiftcal"]


def sets(*words: str) -> list[str]:
    return [part for word in (*SMALL, *words) for part in ("--set", word)]


def command(kind: str, place: Path, out: Path) -> list[str]:
    """The command, as somebody would give it again and again until it is done."""
    if kind == "corrupt":
        return [*PLAIN, "corrupt", str(place / "test.npy"), str(out), "--names", "fog,snow,glass_blur,zoom_blur"]
    if kind == "bench":
        return [*PLAIN, "bench", "demo", "--methods", "ce,fgr", *sets("train.epochs=12"), "--out", str(out)]
    if kind == "finetune":
        epochs = ["--set", "finetune.epochs=200"]
        return [*PLAIN, "finetune", str(place / "trained"), *epochs, "--out", str(out), "--resume"]
    start, epochs = (RANKS, "train.epochs=30") if kind == "ranks" else (PLAIN, "train.epochs=30")
    return [*start, "train", "demo", *sets(epochs, "method=fgr-ema"), "--out", str(out), "--resume"]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def finish(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def results(out: Path) -> dict[str, str]:
    """Checksums of what a command leaves: weights or arrays."""
    files = sorted([*out.rglob("model.safetensors"), *out.rglob("*.npy")])
    wanted = [path for path in files if "checkpoints" not in path.parts]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in wanted}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("kills")
    rng = np.random.default_rng(0)
    np.save(place / "test.npy", rng.integers(0, 256, (3000, 32, 32, 3), dtype=np.uint8))
    np.save(place / "labels.npy", np.arange(3000) % 10)
    finish([*PLAIN, "train", "demo", *sets("train.epochs=3", "method=ce"), "--out", str(place / "trained")])
    return place


def checkpoints(out: Path) -> list[str]:
    return sorted(path.name for path in out.rglob("epoch-*") if not path.name.endswith(".tmp"))[-1:]


@pytest.fixture
def no_orphans(tmp_path: Path) -> Iterator[None]:
    """Kill what is left of commands in the end: ranks whose torchrun was killed first wait half an hour for it."""
    yield
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(tmp_path) in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize("kind", ["train", "bench", "finetune", "corrupt", "ranks"])
def test_random_kills(kind: str, place: Path, tmp_path: Path) -> None:
    rng = random.Random(kind)
    finish(command(kind, place, tmp_path / "whole"))
    words = command(kind, place, tmp_path / "killed")
    for _ in range(KILLS):
        before = checkpoints(tmp_path / "killed")
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(), start_new_session=True
        )
        time.sleep(rng.uniform(2.0, 6.0))
        os.killpg(process.pid, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        process.wait(60)
        assert checkpoints(tmp_path / "killed") >= before, "what was written stays"
    finish(words)
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    left = [path for path in (tmp_path / "killed").rglob(".*") if path.name.endswith(".tmp")]
    assert left == [], "what kills left half-written is gone"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of a few megabytes, whose size can be changed."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mounted(size: str) -> Path:
        options = f"size={size}" if not os.path.ismount(disk) else f"remount,size={size}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True)
        if done.returncode:
            pytest.skip("this test may not mount a file system")
        return disk

    yield mounted
    subprocess.run(["umount", str(disk)], check=False, capture_output=True)


def test_a_full_disk_loses_nothing(small_disk: Callable[[str], Path], tmp_path: Path) -> None:
    """A checkpoint has 1.3 MB, the weights 0.6 MB."""
    words = [*PLAIN, "train", "demo", *sets("train.epochs=6")]
    finish([*words, "--out", str(tmp_path / "whole")])
    disk = small_disk("2600k")  # room for one checkpoint and a half: older ones have to go
    tight = subprocess.run(
        [*words, "--out", str(disk / "run")], capture_output=True, text=True, check=False, env=environment()
    )
    assert tight.returncode == 0, tight.stderr
    assert "WARNING: no room for checkpoint" in tight.stdout
    assert results(disk / "run") == results(tmp_path / "whole")


def test_a_disk_too_small_ends_a_run_in_one_line_that_resumes_where_there_is_room(
    small_disk: Callable[[str], Path], tmp_path: Path
) -> None:
    words = [*PLAIN, "train", "demo", *sets("train.epochs=6")]
    finish([*words, "--out", str(tmp_path / "whole")])
    disk = small_disk("1500k")  # a checkpoint, but not the weights beside it
    code = (
        "import sys\nfrom shiftcal.experiments import checkpoint\ncheckpoint.PATIENCE = checkpoint._WAIT = 0.1\n"
        "from shiftcal.cli import main\nmain()"
    )
    out = ["--out", str(disk / "run")]
    full = subprocess.run(
        [sys.executable, "-c", code, *words[3:], *out], capture_output=True, text=True, check=False, env=environment()
    )
    assert full.returncode == 1
    assert full.stderr.count("\n") == 1
    assert "should be a directory with room" in full.stderr
    assert "training continues without it" in full.stdout
    kept = checkpoints(disk / "run")
    assert kept, "a checkpoint was written and stays"
    small_disk("20m")
    finish([*words, *out, "--resume"])
    assert results(disk / "run") == results(tmp_path / "whole")
