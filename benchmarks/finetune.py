"""Fine-tuning the classifier on kept features against training the same model from scratch, in one run.

python benchmarks/finetune.py [quick-cifar10]

Images are noise of CIFAR-10's number and size: no time depends on what they show. From scratch is measured over a few
epochs of cross-entropy after the first and multiplied by the recipe's number of epochs.
"""

import sys
import time

import torch
from step import dataset

from shiftcal.experiments.config import load_config
from shiftcal.experiments.run import train
from shiftcal.experiments.setup import stage_of
from shiftcal.training.finetune import finetune

EPOCHS = 5


def main() -> None:
    recipe = sys.argv[1] if len(sys.argv) > 1 else "quick-cifar10"
    torch.backends.cudnn.benchmark = True
    config = load_config(recipe, ["method=fgr"])
    data = dataset(45_000 if torch.cuda.is_available() else 2_000)
    short = load_config(recipe, ["method=ce", f"train.epochs={EPOCHS}", "engine.compile=off", "train.milestones=[]"])
    run = train(short, data, progress=False)
    epoch = min(entry["seconds"] for entry in run.history[1:])
    whole = epoch * config.train.epochs
    print(f"{recipe}: {epoch:.2f} s an epoch from scratch, {whole:.1f} s for {config.train.epochs}")
    for _ in range(3):
        clock = time.perf_counter()
        model = run.model.eval().requires_grad_(True)
        tuned, features = finetune(model, data, stage_of(config), progress=False)
        seconds = time.perf_counter() - clock
        head = sum(entry["seconds"] for entry in tuned.history)
        print(f"fine-tuning {seconds:.2f} s (features {features:.2f}, classifier {head:.2f}): {seconds / whole:.1%}")


if __name__ == "__main__":
    main()
