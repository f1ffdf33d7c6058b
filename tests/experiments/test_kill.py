"""A real process, killed for good again and again, ends with the weights of one that never was."""

import json
import multiprocessing
import random
import time
from pathlib import Path

import pytest

from shiftcal.experiments.config import load_config
from shiftcal.experiments.run import complete

WORDS = ["data.train=200", "data.validation=40", "data.test=40", "train.epochs=60", "train.batch_size=32"]
WORDS += ["method=fgr-ema", "train.start=0.2", "filter.ratio=0.1", "evaluation.corruptions=[]"]
KILLS, WHILE_WRITING = 24, 8


def run(out: str) -> None:
    import torch

    torch.set_num_threads(1)
    complete(load_config("demo", WORDS), Path(out), resume=True, progress=False)


@pytest.mark.slow
def test_killed_at_any_instant_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["shiftcal.experiments.run"])
    rng = random.Random(0)
    whole, out = tmp_path / "whole", tmp_path / "killed"
    child = context.Process(target=run, args=(str(whole),))
    child.start()
    child.join(300)
    assert child.exitcode == 0
    kills = writing = 0
    while kills < KILLS or writing < WHILE_WRITING:
        child = context.Process(target=run, args=(str(out),))
        child.start()
        in_writing = _wait(child, out, rng, while_writing=writing < WHILE_WRITING and kills % 2 == 0)
        assert child.exitcode is None, "the run is long enough to be killed often"
        child.kill()
        child.join()
        kills += 1
        writing += in_writing
        assert not (out / "record.json").exists()
    child = context.Process(target=run, args=(str(out),))
    child.start()
    child.join(300)
    assert child.exitcode == 0
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    histories = []
    for directory in (whole, out):
        record = json.loads((directory / "record.json").read_text())
        histories.append([(e["loss"], e["conflict_rate"] if e["active"] else None) for e in record["history"]])
    assert histories[0] == histories[1]
    assert not [path for path in out.rglob(".*") if path.suffix == ".tmp"], "what kills left half-written is gone"


def _wait(child: multiprocessing.process.BaseProcess, out: Path, rng: random.Random, *, while_writing: bool) -> bool:
    """Wait a random time after the child's first checkpoint, or for the instant in which it writes one."""
    known = set(out.glob("checkpoints/epoch-*"))
    deadline = time.monotonic() + 60
    while child.is_alive() and time.monotonic() < deadline and set(out.glob("checkpoints/epoch-*")) == known:
        time.sleep(0.001)  # so that every attempt gets further
    if not while_writing:
        time.sleep(rng.uniform(0, 0.1))
        return bool(list(out.glob("checkpoints/.*.tmp")))
    while child.is_alive() and time.monotonic() < deadline:
        if list(out.glob("checkpoints/.*.tmp")):
            time.sleep(rng.uniform(0, 0.003))
            return bool(list(out.glob("checkpoints/.*.tmp")))
    return False
