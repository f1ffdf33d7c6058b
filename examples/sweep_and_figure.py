"""How sensitive is FGR to γ? A sweep by `shiftcal bench`, and the figure by `shiftcal figures`.

python examples/sweep_and_figure.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = ["data.train=1000", "data.validation=200", "data.test=200", "train.epochs=3"]
SIZES += ["data.texture_amplitude=0.15", "data.texture_match=0.95", 'evaluation.corruptions=["contrast"]']


def shiftcal(*words: str | Path) -> None:
    """Run a command."""
    subprocess.run([sys.executable, "-m", "shiftcal", *map(str, words)], check=True)


def main(out: Path) -> None:
    """Train with three values of γ, and draw accuracy and ECE against it."""
    options = [word for item in SIZES for word in ("--set", item)]
    sweep = ["--methods", "fgr", "--sweep", "gamma.fgr=0,1,3"]
    shiftcal("bench", "demo", *options, *sweep, "--out", out / "gamma")
    shiftcal("figures", "sensitivity", out / "gamma", "--out", out / "figures")
    for figure in sorted((out / "figures").glob("*.png")):
        print(f"{figure.name}: {figure.stat().st_size // 1000} kB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
