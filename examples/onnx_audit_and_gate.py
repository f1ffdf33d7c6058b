"""What a build does before a release: export to ONNX, audit the file, and let `shiftcal gate` pass or fail it.

python examples/onnx_audit_and_gate.py        needs the extra `onnx`
"""

import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = ["data.train=1600", "data.validation=400", "data.test=400", "train.epochs=4", "evaluation.corruptions=[]"]
SIZES += ["data.texture_amplitude=0.15", "data.texture_match=0.95"]  # easy: a short training does


def shiftcal(*words: str | Path) -> int:
    """Run a command as a build would, and return its exit code."""
    return subprocess.run([sys.executable, "-m", "shiftcal", *map(str, words)], check=False).returncode


def main(out: Path) -> None:
    """Train a small model and take it through the gate, with a limit that it keeps and one that it does not."""
    options = [word for item in (*SIZES, "method=ce") for word in ("--set", item)]
    assert shiftcal("train", "demo", *options, "--out", out / "run") == 0
    assert shiftcal("export", out / "run", "--calibrator", "none", "--to", out / "model.onnx") == 0
    keys = [item.removeprefix("data.") for item in SIZES if item.startswith("data.")]
    (out / "images.toml").write_text("\n".join(["[data]", *keys]))
    images = ["--data", out / "images.toml", "--corruptions", "contrast"]
    assert shiftcal("audit", out / "model.onnx", *images, "--out", out / "audit") == 0
    loose = shiftcal("gate", out / "audit", "--max-ece", "0.9")
    tight = shiftcal("gate", out / "audit", "--max-ece", "0.000001")
    print(f"gate: exit code {loose} with a limit of 0.9, {tight} with one of 0.000001")
    assert (loose, tight) == (0, 1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
