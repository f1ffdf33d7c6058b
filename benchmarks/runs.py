"""Whole runs: what a method costs beside cross-entropy, and how many runs an hour has, side by side and in turn.

    python benchmarks/runs.py quick-cifar10 --methods ce,fgr-released,fgr+view
    python benchmarks/runs.py quick-cifar10 --methods ce,ce,ce,ce --workers 4

The first prints the seconds of each whole run, training, validation, checkpoints and evaluation, relative to the first
method's; a run of one epoch before it pays what a process pays once. The second completes the same runs twice, one
after the other and with so many workers, and prints the ratio. `--set METHOD:key=value` changes a key for one method
alone; `--out DIR` keeps the runs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.grid import complete_all
from shiftcal.experiments.run import complete
from shiftcal.experiments.setup import load_dataset


def configs(recipe: str, methods: list[str], changes: list[str]) -> dict[str, Config]:
    """A run for each method; one that is named again gets the next seed."""
    found: dict[str, Config] = {}
    for method in methods:
        seed = sum(name.startswith(f"{method}-") for name in found)
        found[f"{method}-{seed}"] = load_config(
            recipe, [f"seed={seed}", *changes_of(method, changes), f"method={method}"]
        )
    return found


def changes_of(method: str, changes: list[str]) -> list[str]:
    """What is set for every method, and for this one alone."""
    own = f"{method}:"
    return [
        change.removeprefix(own) for change in changes if ":" not in change.partition("=")[0] or change.startswith(own)
    ]


def one_after_the_other(runs: dict[str, Config], out: Path) -> dict[str, float]:
    """Return the seconds of each run; the data set is loaded before."""
    seconds = {}
    for name, config in runs.items():
        dataset = load_dataset(config)
        started = time.perf_counter()
        complete(config, out / name, dataset=dataset, progress=False)
        seconds[name] = time.perf_counter() - started
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--methods", default="ce,fgr-released,fgr+view")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="a key of the recipe, [METHOD:]key=value")
    parser.add_argument("--out", type=Path, help="a new directory that keeps the runs")
    options = parser.parse_args()
    runs = configs(options.recipe, options.methods.split(","), options.set)
    with tempfile.TemporaryDirectory() as folder:
        short = [*changes_of("", options.set), "train.epochs=1", "evaluation.corruptions=[]"]
        one_after_the_other({"warm": load_config(options.recipe, short)}, Path(folder) / "warm")
        if options.workers == 1:
            seconds = one_after_the_other(runs, options.out or Path(folder))
            first = next(iter(seconds.values()))
            for name, value in seconds.items():
                print(f"{name:<24} {value:8.1f} s  {value / first:5.2f}", flush=True)
            return
        in_turn = sum(one_after_the_other(runs, (options.out or Path(folder)) / "in-turn").values())
        started = time.perf_counter()
        complete_all(runs, (options.out or Path(folder)) / "side-by-side", workers=options.workers, share_warmup=False)
        together = time.perf_counter() - started
    print(f"{len(runs)} runs: in turn {in_turn:.1f} s, {options.workers} side by side {together:.1f} s, ", end="")
    print(f"{in_turn / together:.2f} times as many an hour")


if __name__ == "__main__":
    main()
