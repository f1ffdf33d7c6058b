"""CalibrationMeter against the same set of metrics from torchmetrics and TorchUncertainty, in one run on one core.

python benchmarks/meter.py      (needs torch-uncertainty, torchmetrics, torchvision, timm and lightning)

A million predictions over 100 classes in batches of 1,000: accuracy, ECE, MCE and NLL, Brier, classwise ECE together.
Every contender runs in a process of its own, which also measures by how much its memory grew at the highest.
"""

import json
import subprocess
import sys
import time
from typing import Any

import torch

CLASSES, BATCH, BATCHES, KINDS, ROUNDS = 100, 1000, 1000, 8, 3


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Make a few batches, which are fed again and again: what is measured is the metrics, not the data."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(KINDS):
        p = (2 * torch.randn(BATCH, CLASSES, generator=generator)).softmax(-1)
        made.append((p, torch.multinomial(p, 1, generator=generator).squeeze(1)))
    return made


class Ours:
    def __init__(self) -> None:
        from shiftcal.metrics import CalibrationMeter

        self.meter = CalibrationMeter(CLASSES)

    def update(self, p: torch.Tensor, y: torch.Tensor) -> None:
        self.meter.update(p, y)

    def compute(self) -> dict[str, float]:
        return self.meter.compute()


class Theirs:
    """torchmetrics where it has the metric, TorchUncertainty for Brier, NLL and classwise ECE."""

    def __init__(self) -> None:
        from torch_uncertainty.metrics.classification import BrierScore, CategoricalNLL, ClasswiseCalibrationError
        from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

        self.metrics: dict[str, Any] = {
            "accuracy": MulticlassAccuracy(CLASSES, average="micro"),
            "nll": CategoricalNLL(),
            "brier": BrierScore(CLASSES),
            "ece": MulticlassCalibrationError(CLASSES, n_bins=15, norm="l1"),
            "mce": MulticlassCalibrationError(CLASSES, n_bins=15, norm="max"),
            "classwise_ece": ClasswiseCalibrationError(CLASSES, num_bins=15),
        }

    def update(self, p: torch.Tensor, y: torch.Tensor) -> None:
        for metric in self.metrics.values():
            metric.update(p, y)

    def compute(self) -> dict[str, float]:
        return {name: float(metric.compute()) for name, metric in self.metrics.items()}


class TheirsTopLabel(Theirs):
    """torchmetrics' top-label ECE alone."""

    def __init__(self) -> None:
        from torchmetrics.classification import MulticlassCalibrationError

        self.metrics = {"ece": MulticlassCalibrationError(CLASSES, n_bins=15, norm="l1")}


CONTENDERS = {
    "shiftcal.CalibrationMeter, all six": Ours,
    "torchmetrics and TorchUncertainty, all six": Theirs,
    "torchmetrics, top-label ECE alone": TheirsTopLabel,
}


def peak_megabytes() -> float:
    from shiftcal import _machine

    return _machine.peak_memory() / 2**20


def measure(name: str) -> dict[str, Any]:
    """Feed a contender in this process; a first short pass loads what is loaded once."""
    torch.set_num_threads(1)
    data = batches()
    warm = CONTENDERS[name]()
    for p, y in data:
        warm.update(p, y)
    warm.compute()
    del warm
    contender, before, start = CONTENDERS[name](), peak_megabytes(), time.perf_counter()
    for index in range(BATCHES):
        # Clones, as a model's outputs are: a metric that keeps every batch keeps its memory.
        p, y = data[index % KINDS]
        contender.update(p.clone(), y.clone())
    values = contender.compute()
    return {"seconds": time.perf_counter() - start, "megabytes": peak_megabytes() - before, "values": values}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name, results in runs.items():
            done = subprocess.run([*sys.orig_argv, name], check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    best = {name: min(results, key=lambda r: r["seconds"]) for name, results in runs.items()}
    ours = best["shiftcal.CalibrationMeter, all six"]
    print(f"{BATCHES * BATCH:,} × {CLASSES}, batches of {BATCH:,}, one thread, best of {ROUNDS} interleaved rounds\n")
    print("| | seconds | time, relative to ours | memory grew by |\n|---|---:|---:|---:|")
    for name, result in best.items():
        ratio = result["seconds"] / ours["seconds"]
        print(f"| {name} | {result['seconds']:.2f} | {ratio:.1f}× | {result['megabytes']:.0f} MB |")
    print("\n| metric | ours | theirs |\n|---|---:|---:|")
    theirs = best["torchmetrics and TorchUncertainty, all six"]["values"]
    for metric, value in ours["values"].items():
        print(f"| {metric} | {value:.7f} | {theirs[metric]:.7f} |")


if __name__ == "__main__":
    main()
