"""Table and figure of the two interrupted runs in this folder, from their logs.

python results/cifar10/released/read.py
"""

import json
import lzma
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from matplotlib.figure import Figure

HERE = Path(__file__).parent
COLOURS = {"fgr-released": "#d55e00", "filter-only-released": "#0072b2"}
STRETCHES = ((151, 200), (201, 250), (251, 276), (277, 326))
MEASURED = ("validation_accuracy", "validation_ece", "validation_nll")
Log = list[dict[str, Any]]


def log(method: str) -> Log:
    with lzma.open(HERE / f"log-{method}.jsonl.xz", "rt") as file:
        return [json.loads(line) for line in file]


def in_stretch(entries: Log, key: str, first: int, last: int) -> list[float]:
    return [entry[key] for entry in entries if first <= entry["epoch"] <= last and key in entry]


def table(logs: dict[str, Log]) -> None:
    for first, last in STRETCHES:
        for method, entries in logs.items():
            values = [in_stretch(entries, key, first, last) for key in MEASURED]
            heard = [in_stretch(entries, key, first, last) for key in ("conflict_rate", "mean_cosine")]
            cells = [f"{mean(value):.4f} ± {stdev(value):.4f}" for value in values]
            print(f"{first}–{last}", method, *cells, *(f"{mean(value):.3f}" for value in heard if value), sep=" | ")


def noise(logs: dict[str, Log]) -> None:
    for method, entries in logs.items():
        for entry in entries:
            for scope in ("all", "classifier"):
                if f"noise_{scope}_cosine" in entry:
                    of_two, of_main = (entry[f"noise_{scope}_{name}"] for name in ("cosine", "main_cosine"))
                    errors = [entry[f"noise_{scope}_{name}_error"] for name in ("cosine", "main_cosine")]
                    print(
                        method,
                        entry["epoch"],
                        scope,
                        f"{of_two:.3f} ± {errors[0]:.3f}, {of_main:.3f} ± {errors[1]:.3f}",
                    )


def single_epochs(logs: dict[str, Log]) -> None:
    for method, entries in logs.items():
        best = min(entries, key=lambda entry: entry["validation_ece"])
        print(method, "lowest", best["epoch"], best["validation_ece"], best["validation_accuracy"])
        print(method, "195 to 200", [entry["validation_ece"] for entry in entries[194:200]])
    for epoch in (201, 275, 331):
        entry = logs["fgr-released"][epoch - 1]
        print("fgr-released", epoch, "conflicts", entry["conflict_rate"], "cosine", entry["mean_cosine"])


def times(logs: dict[str, Log]) -> None:
    alone, filtered = (logs["fgr-released"][k] for k in (slice(100, 200), slice(201, 203)))
    both = [entry["seconds"] for entries in logs.values() for entry in entries[219:319]]
    print("an epoch alone", median(entry["seconds"] for entry in alone))
    print("an active one alone (two)", mean(entry["seconds"] for entry in filtered), "side by side", median(both))


def draw(logs: dict[str, Log]) -> None:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for method, entries in reversed(logs.items()):
        epochs = [entry["epoch"] for entry in entries]
        axes.plot(
            epochs, [100 * entry["validation_ece"] for entry in entries], label=method, color=COLOURS[method], lw=1
        )
    for epoch, text in ((150, "rate 0.01"), (200, "filter (and constraint)"), (250, "rate 0.001")):
        axes.axvline(epoch, color="0.6", lw=0.8, ls=":")
        axes.text(epoch + 2, 33, text, fontsize=7, color="0.35", rotation=90, va="top")
    axes.set(xlabel="epoch of 350", ylabel="ECE on validation images, %", xlim=(0, 350), ylim=(0, 34))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right", fontsize=8)
    figure.savefig(HERE / "validation.png", dpi=150)


if __name__ == "__main__":
    logs = {method: log(method) for method in COLOURS}
    table(logs)
    noise(logs)
    single_epochs(logs)
    times(logs)
    draw(logs)
