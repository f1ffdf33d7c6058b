"""Figure and numbers of this folder, from the records: python results/cifar10/memorised/figure.py"""

from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shiftcal.records import RunRecord, load_records

HERE = Path(__file__).parent
COLOURS = {"filter-only": "#0072b2", "fgr": "#d55e00", "fgr-shared": "#009e73", "ce": "#777777"}
STYLES = {"sum": "-", "mean": "--", "as released": ":"}
START = 200


def method(record: RunRecord) -> str:
    return record.method.removesuffix("-released")


def protocol(record: RunRecord) -> str:
    return "as released" if record.method.endswith("-released") else str(record.config["train"]["loss_reduction"])


def is_held_out(record: RunRecord) -> bool:
    return str(record.config["data"]["name"]).endswith("held-out")


def label(record: RunRecord) -> str:
    return f"{method(record)}{', held-out constraint' if is_held_out(record) else ''}, {protocol(record)}"


def main() -> None:
    figure = Figure((9, 3.6), layout="constrained")
    axis = figure.subplots()
    records = sorted(load_records(HERE), key=label)
    for name, alike in groupby(records, label):
        draw(axis, name, seeds := list(alike))
        print(f"{name:35s} {describe(seeds)}")
    print(differences([r for r in records if protocol(r) == "sum" and not is_held_out(r)]))
    axis.axvline(START, color="#999999", lw=0.8)
    axis.set(xlabel=f"epoch (filter and rectification after {START})", ylabel="ECE on validation images, %", ylim=0)
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(HERE / "ece.png", dpi=110)


def draw(axis: Axes, name: str, seeds: list[RunRecord]) -> None:
    """Draw the mean over seeds, and how far they lie apart."""
    one = seeds[0]
    whole = method(one) in ("ce", "filter-only")  # the others share their first epochs
    epochs = [entry.epoch for entry in one.history if whole or entry.epoch > START]
    errors = np.array([[100 * r.history[epoch - 1].validation["ece"] for epoch in epochs] for r in seeds])
    colour = "#cc79a7" if is_held_out(one) else COLOURS.get(method(one), "#000000")
    axis.plot(epochs, errors.mean(0), STYLES[protocol(one)], color=colour, label=name, lw=1.2)
    axis.fill_between(epochs, errors.min(0), errors.max(0), color=colour, alpha=0.2, lw=0)


def describe(seeds: list[RunRecord]) -> str:
    evaluations = [r.evaluation for r in seeds]
    words = [f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed"]
    for name, found in (("clean", [e.clean for e in evaluations]), ("shifted", [e.shifted for e in evaluations])):
        measures = [[m.accuracy for m in found], [m.ece for m in found], [m.scaled["clean"].ece for m in found]]
        words.append(f"{name} {spread(measures[0])}, ECE {spread(measures[1])}, TS {spread(measures[2])}")
    before = [fmean(e.validation["ece"] for e in r.history if START - 25 < e.epoch <= START) for r in seeds]
    last = [fmean(e.validation["ece"] for e in r.history if e.epoch > len(r.history) - 25) for r in seeds]
    words += [f"validation {spread(before)} in epochs 176–200, {spread(last)} in the last 25"]
    steps = [e for r in seeds for e in r.history if e.conflict_rate is not None and e.mean_cosine is not None]
    if steps:
        conflicts, cosine = fmean(e.conflict_rate for e in steps), fmean(e.mean_cosine for e in steps)
        words += [f"conflicts {conflicts:.0%}, cosine {cosine:.3f}"]
    return "; ".join(words)


def differences(records: list[RunRecord]) -> str:
    """Say by how much ECEs differ from the filter's alone, seed by seed."""
    ece = {
        (method(r), r.config["seed"], images): getattr(r.evaluation, images).ece
        for r in records
        for images in ("clean", "shifted")
    }
    names = sorted({key[0] for key in ece} - {"filter-only"})
    lines = []
    for name in names:
        for images in ("clean", "shifted"):
            found = [ece[name, seed, images] - ece["filter-only", seed, images] for seed in (0, 1, 2)]
            lines.append(f"{name} − filter-only, {images}: {spread(found)}")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    return f"{fmean(values):.1%}" + (f" ± {stdev(values):.1%}" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
