"""Print the tables of README.md beside this file that `shiftcal report` does not make, from the records."""

from collections import defaultdict
from pathlib import Path

from shiftcal.records import load_records

HERE = Path(__file__).parent
METHODS = (
    "ce",
    "dfl",
    "fgr",
    "filter-only",
    "rect-only",
    "weighted-sum",
    "fgr-shared",
    "fgr-ema",
    "mixup",
    "augmix",
    "fgr+mixup",
    "fgr+augmix",
)


def line(name: object, values: list[str]) -> None:
    print(f"| {name} | " + " | ".join(values) + " |")


def main() -> None:
    runs = {(r.method, r.seed): r.evaluation for r in load_records(HERE / "runs")}
    print("Shifted ECE by seed, and FGR's accuracy in distribution minus cross-entropy's\n")
    for seed in range(5):
        gain = 100 * (runs["fgr", seed].clean.accuracy - runs["ce", seed].clean.accuracy)
        line(seed, [f"{100 * runs[m, seed].shifted.ece:.2f}" for m in METHODS] + [f"{gain:+.2f}"])
    print("\nShifted ECE by kind of shift, mean over severities and seeds\n")
    kinds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (method, _), evaluation in runs.items():
        for cell in evaluation.shifts:
            kinds[cell.shift][method].append(100 * cell.ece)
    for kind, by_method in kinds.items():
        line(kind.replace("_", " "), [f"{sum(by_method[m]) / len(by_method[m]):.1f}" for m in METHODS])
    print("\nValidation ECE by γ, seed 100\n")
    chosen: dict[str, dict[float, float]] = defaultdict(dict)
    for folder in sorted((HERE / "selection").iterdir()):
        (record,) = load_records(folder)
        gamma = record.config["gamma"][record.method]
        chosen[record.method][gamma] = 100 * record.evaluation.validation.ece
    for method, by_gamma in chosen.items():
        line(method, [f"{by_gamma[gamma]:.2f}" for gamma in sorted(by_gamma)])


if __name__ == "__main__":
    main()
