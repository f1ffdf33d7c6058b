"""Table and figure of the interrupted run in this folder, beside its counterpart of the released protocol.

python results/cifar10/paper/read.py
"""

import json
import lzma
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from matplotlib.figure import Figure

HERE = Path(__file__).parent
LOGS = {
    "the paper's protocol, filter alone": (HERE / "log-filter-only.jsonl.xz", "#0072b2"),
    "as released, filter alone": (HERE.parent / "released" / "log-filter-only-released.jsonl.xz", "#bbbbbb"),
}
STRETCHES = ((155, 200), (205, 250), (255, 280), (285, 310))
MEASURED = ("accuracy", "confidence", "ece", "nll")
Log = list[dict[str, Any]]


def log(path: Path) -> Log:
    with lzma.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def measured(entries: Log, key: str, first: int, last: int) -> list[float]:
    name = f"validation_{key}"
    return [entry[name] for entry in entries if first <= entry["epoch"] <= last and name in entry]


def table(entries: Log) -> None:
    for first, last in STRETCHES:
        values = [measured(entries, key, first, last) for key in MEASURED]
        print(f"{first}–{last}", *(f"{mean(value):.4f} ± {stdev(value):.4f}" for value in values), sep=" | ")


def noise(entries: Log) -> None:
    for entry in entries:
        for scope in ("all", "classifier"):
            if f"noise_{scope}_cosine" in entry:
                found = [entry[f"noise_{scope}_{name}"] for name in ("cosine", "cosine_error")]
                found += [entry[f"noise_{scope}_{name}"] for name in ("main_cosine", "main_cosine_error")]
                print(entry["epoch"], scope, "{:.3f} ± {:.3f}, {:.3f} ± {:.3f}".format(*found))


def times(entries: Log) -> None:
    plain, filtered = (median(entry["seconds"] for entry in entries[k]) for k in (slice(160, 200), slice(201, 312)))
    print(f"an epoch alone {plain:.2f} s, with the filter {filtered:.2f} s")


def draw() -> None:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, (path, colour) in reversed(LOGS.items()):
        pairs = [(entry["epoch"], 100 * entry["validation_ece"]) for entry in log(path) if "validation_ece" in entry]
        axes.plot(*zip(*pairs, strict=True), label=name, color=colour, lw=1.2)
    axes.axhline(11.54, color="#d55e00", lw=1, ls="--", label="the paper, filter alone: 11.54 (test images)")
    for epoch, height, text in ((150, 33, "rate 0.01"), (200, 24, "filter"), (250, 24, "rate 0.001")):
        axes.axvline(epoch, color="0.6", lw=0.8, ls=":")
        axes.text(epoch + 2, height, text, fontsize=7, color="0.35", rotation=90, va="top")
    axes.set(xlabel="epoch of 350", ylabel="ECE on validation images, %", xlim=(0, 350), ylim=(0, 34))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right", fontsize=8)
    figure.savefig(HERE / "validation.png", dpi=150)


if __name__ == "__main__":
    entries = log(LOGS["the paper's protocol, filter alone"][0])
    table(entries)
    noise(entries)
    times(entries)
    draw()
