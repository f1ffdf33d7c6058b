"""Your own images under common corruptions: a folder in, a folder for each corruption and severity out.

python examples/corrupt_folder.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from shiftcal import data


def main(out: Path) -> None:
    """Write a small folder of class folders, and corrupt it."""
    dataset = data.load("shapes", train=8, validation=8, test=40)
    for number, (image, target) in enumerate(zip(dataset.test.images, dataset.test.targets, strict=True)):
        folder = out / "photos" / dataset.classes[int(target)]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:02d}.png")
    command = [sys.executable, "-m", "shiftcal", "corrupt", str(out / "photos"), str(out / "corrupted")]
    subprocess.run([*command, "--names", "fog,motion_blur", "--severities", "1,5"], check=True)
    found = sorted(path.relative_to(out) for path in (out / "corrupted").rglob("*.*") if path.is_file())
    print(f"{len(found)} files, such as {found[0]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
