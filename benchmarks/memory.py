"""Training on a CPU with the memory that is freed kept, as the command line does, against glibc's defaults.

    python benchmarks/memory.py                     # a ResNet-18 on images of 32 × 32, batches of 128
    python benchmarks/memory.py quick-pacs --set data.root=FOLDER --set train.weights=FILE --set data.holdout=sketch

Whole runs of `shiftcal train` in processes of their own, in turn, twice each; the seconds are those of the fastest
epoch but the first, the memory is the most that a process had.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SMALL = ("train.model=resnet18", "train.batch_size=128", "data.train=640", "data.validation=256", "data.test=256")
SHORT = ("device=cpu", "method=ce", "train.epochs=3", "evaluation.corruptions=[]", 'evaluation.temperatures=["clean"]')
WAYS = {"kept": {}, "glibc's defaults": {"GLIBC_TUNABLES": ""}}  # what is set for glibc, if only to nothing, stays


def measure(way: str, recipe: str, changes: list[str], out: Path) -> tuple[float, float]:
    """Return the seconds of an epoch and the GiB of a run."""
    options = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "shiftcal", "train", recipe, *options, "--out", str(out)]
    process = subprocess.Popen(command, env=os.environ | WAYS[way], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed.")
    seconds = [json.loads(line)["seconds"] for line in (out / "log.jsonl").read_text().splitlines()]
    return min(seconds[1:]), used.ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="demo")
    parser.add_argument("--set", action="append", default=[], help="a key of the recipe, key=value")
    options = parser.parse_args()
    changes = [*SHORT, *(SMALL if options.recipe == "demo" else ()), *options.set]
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(2):
            for place, way in enumerate(WAYS):
                found[way].append(measure(way, options.recipe, changes, Path(folder) / f"{turn}-{place}"))
    seconds = {way: min(value for value, _ in values) for way, values in found.items()}
    for way, values in found.items():
        ratio = seconds["glibc's defaults"] / seconds[way]
        print(f"{way}: {seconds[way]:.2f} s an epoch, {ratio:.2f} times as fast, {max(m for _, m in values):.2f} GiB")


if __name__ == "__main__":
    main()
