"""A grid of FGR and its ablations whose runs share their warm-up, against the same grid with each run on its own.

    python benchmarks/warmup.py                                        # two cores: the embedded data set
    python benchmarks/warmup.py quick-cifar10 --methods fgr,filter-only,rect-only,weighted-sum   # a GPU

Training, validation, checkpoints and evaluation of whole runs, one after the other; a run of one epoch before pays what
a process pays once. On a CPU both grids end with the same weights, bit for bit: a test compares them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.grid import complete_all

SMALL = ("data.train=3000", "train.epochs=14", "evaluation.corruptions=[]")


def seconds_of(configs: dict[str, Config], out: Path, *, share: bool) -> float:
    """Return the seconds of a grid."""
    started = time.perf_counter()
    complete_all(configs, out, share_warmup=share)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="demo")
    parser.add_argument("--methods", default="fgr,filter-only,rect-only,weighted-sum")
    parser.add_argument("--set", action="append", default=[], help="a key of the recipe, key=value")
    options = parser.parse_args()
    changes = [*(SMALL if options.recipe == "demo" else ()), *options.set]
    configs = {name: load_config(options.recipe, [*changes, f"method={name}"]) for name in options.methods.split(",")}
    with tempfile.TemporaryDirectory() as folder:
        first = load_config(options.recipe, [*changes, "train.epochs=1", "train.start=0"])
        seconds_of({"first": first}, Path(folder) / "first", share=False)
        apart = seconds_of(configs, Path(folder) / "apart", share=False)
        shared = seconds_of(configs, Path(folder) / "shared", share=True)
    print(f"{len(configs)} runs: each on its own {apart:.1f} s, with shared warm-ups {shared:.1f} s, ", end="")
    print(f"{apart / shared:.2f} times as many an hour")


if __name__ == "__main__":
    main()
