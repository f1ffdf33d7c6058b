"""From a run to one file with calibrated probabilities: audit, calibrate, export, and a folder to share.

python examples/calibrated_export.py          needs the extra `onnx`
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import shiftcal
from shiftcal import data, metrics

SIZES = ["data.train=1600", "data.validation=400", "data.test=400", "train.epochs=4", "evaluation.corruptions=[]"]
SIZES += ["data.texture_amplitude=0.15", "data.texture_match=0.95"]  # easy: a short training does


def command(*words: str | Path) -> None:
    """Run a command of shiftcal's."""
    subprocess.run([sys.executable, "-m", "shiftcal", *map(str, words)], check=True)


def main(out: Path) -> None:
    """Train, audit with a calibrator, export both, and compare what the files give."""
    options = [word for item in (*SIZES, "method=ce") for word in ("--set", item)]
    command("train", "demo", *options, "--out", out / "run")
    audit = ["audit", out / "run", "--corruptions", "none", "--calibrate", "best"]  # of those that it tried
    command(*audit, "--out", out / "audit")
    calibrator = out / "audit" / "calibrator.safetensors"
    command("export", out / "run", "--calibrator", calibrator, "--to", out / "model.onnx")
    command("card", out / "run", "--calibrator", calibrator, "--license", "mit", "--out", out / "share")

    test = data.load("shapes", train=8, validation=8, test=400, texture_amplitude=0.15, texture_match=0.95).test
    exported = shiftcal.load(out / "model.onnx").predict(test.images)
    shared = shiftcal.load(out / "share").predict(test.images)
    plain = shiftcal.load(out / "run").predict(test.images)
    print(f"exported and shared differ by {(exported - shared).abs().max():.0e}")
    for name, probabilities in (("as it is", plain), ("calibrated", shared)):
        print(f"{name:10}  ECE {metrics.ece(probabilities, test.targets):.1%}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
