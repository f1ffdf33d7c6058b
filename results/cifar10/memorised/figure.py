"""Figure and numbers of this folder, from the records: python results/cifar10/memorised/figure.py"""

from pathlib import Path
from statistics import fmean

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
    for record in sorted(load_records(HERE), key=label):
        whole = method(record) in ("ce", "filter-only")  # the others share their first epochs
        shown = [entry for entry in record.history if whole or entry.epoch > START]
        axis.plot(
            [entry.epoch for entry in shown],
            [100 * entry.validation["ece"] for entry in shown],
            STYLES[protocol(record)],
            color="#cc79a7" if is_held_out(record) else COLOURS.get(method(record), "#000000"),
            label=label(record),
            lw=1.2,
        )
        print(describe(record))
    axis.axvline(START, color="#999999", lw=0.8)
    axis.set(xlabel=f"epoch (filter and rectification after {START})", ylabel="ECE on validation images, %", ylim=0)
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(HERE / "ece.png", dpi=110)


def describe(record: RunRecord) -> str:
    clean, shifted = record.evaluation.clean, record.evaluation.shifted
    before = fmean(e.validation["ece"] for e in record.history if START - 25 < e.epoch <= START)
    last = fmean(e.validation["ece"] for e in record.history if e.epoch > len(record.history) - 25)
    words = [f"{label(record):35s} clean {clean.accuracy:.1%} {clean.ece:.1%}, TS {clean.scaled['clean'].ece:.1%}"]
    words += [f"shifted {shifted.accuracy:.1%} {shifted.ece:.1%}"] if shifted is not None else []
    words += [f"validation {before:.1%} in epochs 176–200, {last:.1%} in the last 25"]
    steps = [e for e in record.history if e.conflict_rate is not None and e.mean_cosine is not None]
    if steps:
        conflicts, cosine = fmean(e.conflict_rate for e in steps), fmean(e.mean_cosine for e in steps)
        words += [f"conflicts {conflicts:.0%}, cosine {cosine:.3f}"]
    return "; ".join(words)


if __name__ == "__main__":
    main()
