"""A method of your own beside ours: my_methods.py registers it, the command line trains it, a table compares it.

python examples/new_method.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = ["data.train=1600", "data.validation=200", "data.test=400", "train.epochs=4"]
SIZES += ["data.texture_amplitude=0.15", "data.texture_match=0.95", 'evaluation.corruptions=["contrast"]']


def shiftcal(*words: str | Path) -> None:
    """Run a command in the folder of the plugin, which is found there."""
    here = Path(__file__).parent
    subprocess.run([sys.executable, "-m", "shiftcal", *map(str, words)], check=True, cwd=here, env=os.environ)


def main(out: Path) -> None:
    """Train cross-entropy and the new method, and report both."""
    options = [word for item in SIZES for word in ("--set", item)]
    shiftcal("train", "demo", *options, "--set", "method=ce", "--out", out / "ce")
    shiftcal("train", "demo", *options, "--plugin", "my_methods", "--set", "method=poly1-fgr", "--out", out / "mine")
    shiftcal("report", out)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
