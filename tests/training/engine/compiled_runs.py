"""Trains methods uncompiled and compiled, without the tests' checks of annotations, which cannot be traced.

python compiled_runs.py BACKEND METHOD…: prints for each method what was compiled and how far the runs are apart.
"""

import json
import sys
from functools import partial

import torch

from shiftcal.experiments.config import load_config
from shiftcal.experiments.run import train

SIZES = ["data.train=100", "data.validation=24", "data.test=24", "train.epochs=2", "train.batch_size=32"]


def compare(method: str) -> dict[str, object]:
    words = [f"method={method}", "train.start=0.5", *SIZES]
    runs = [train(load_config("demo", [*words, f"engine.compile={word}"])) for word in ("off", "on")]
    expected, found = (torch.cat([v.double().flatten() for v in run.model.state_dict().values()]) for run in runs)
    return {
        "compiled": [run.state.engine["compiled"] for run in runs],
        "distance": float((found - expected).norm() / expected.norm()),
        "losses": [[entry["loss"] for entry in run.history] for run in runs],
        "conflicts": [[entry.get("conflict_rate") for entry in run.history] for run in runs],
    }


if __name__ == "__main__":
    torch.compile = partial(torch.compile, backend=sys.argv[1])
    print(json.dumps({method: compare(method) for method in sys.argv[2:]}))
