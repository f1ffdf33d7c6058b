"""How sure each method is on clean and on shifted images, and how often right: means over seeds.

python results/cifar10/seeds/confidence.py filter-only fgr fgr-ema fgr-shared weighted-sum
"""

import statistics
import sys
from pathlib import Path

from shiftcal.records import Bins, Measured, load_records


def right_and_says(bins: Bins) -> list[float]:
    """Accuracy and mean confidence of all that is in the bins."""
    total = sum(bins.count)
    values = (bins.accuracy, bins.confidence)
    return [sum(n * value for n, value in zip(bins.count, each, strict=True)) / total for each in values]


def described(bins: Bins | None, metrics: Measured, scaled: Measured) -> list[float]:
    """Accuracy, confidence, ECE, and ECE after the temperature of clean validation images."""
    if bins is None or metrics.ece is None or scaled.ece is None:
        raise ValueError("a record without bins or ECE")
    return [*right_and_says(bins), metrics.ece, scaled.ece]


def main() -> None:
    """Print a line of Markdown for each method."""
    records = load_records(Path(__file__).parent)
    print("| | clean: right, says, % | ECE | after TS | shifted: right, says, % | ECE | after TS |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in sys.argv[1:]:
        cells = []
        for record in (record for record in records if record.method == name):
            bins, clean, shifted = record.evaluation.reliability, record.evaluation.clean, record.evaluation.shifted
            cells.append(
                described(bins.clean, clean, clean.scaled["clean"])
                + described(bins.shifted, shifted, shifted.scaled["clean"])
            )
        means = [f"{100 * statistics.fmean(values):.1f}" for values in zip(*cells, strict=True)]
        columns = [", ".join(means[:2]), *means[2:4], ", ".join(means[4:6]), *means[6:]]
        print(f"| {' | '.join([name, *columns])} |")


if __name__ == "__main__":
    main()
