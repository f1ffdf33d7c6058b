"""What tests start with torchrun: train short runs and leave their weights. Also run alone, for the comparison."""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from running import run_with

from shiftcal import _distributed, data
from shiftcal.auditing.grid import evaluate
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.setup import load_dataset, set_up
from shiftcal.training.engine import distributed

SIZES = ["data.train=150", "data.validation=37", "data.test=45", "train.batch_size=16", "train.epochs=2"]
SIZES += ["train.learning_rate=0.05", "filter.ratio=0.2", "evaluation.batch_size=10", "train.start=0.5"]
CASES = {
    # 150 images: the last batch has 6, of which four processes take 2, 2, 1 and 1.
    "ce": ["method=ce"],
    "soft_ece": ["method=fgr"],
    "soft_avuc": ["method=fgr-avuc"],
    "mmce": ["method=fgr-mmce"],
    "brier": ["method=fgr-brier"],
    "shared": ["method=fgr-shared"],
    "momentum": ["method=fgr-ema"],
    "mixup": ["method=fgr+mixup"],
    "augmix": ["method=fgr+augmix"],
    "sum and clip": ["method=fgr", "train.loss_reduction=sum", "train.clip_norm=2.0", "train.learning_rate=0.001"],
    "accumulated ce": ["method=ce", "train.accumulate=2"],
    "accumulated soft_ece": ["method=fgr", "train.accumulate=2"],
    "accumulated soft_avuc": ["method=fgr-avuc", "train.accumulate=2"],
    "accumulated mmce": ["method=fgr-mmce", "train.accumulate=2"],
    "accumulated brier": ["method=fgr-brier", "train.accumulate=2"],
    "rectified one by one": ["method=fgr", "train.accumulate=3", "train.rectify_per=micro_batch"],
    # One image is left over, which one process takes.
    "one left": ["method=fgr", "train.batch_size=149"],
}


def config(name: str) -> Config:
    return load_config("demo", [*SIZES, *CASES[name]])


class Plain(torch.nn.Module):
    """A model without batch-norm, whose statistics are those of each process."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(392, 8)]
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def make(num_classes: int) -> Plain:
    """Build the model by name, for the command line."""
    assert num_classes == 8
    return Plain()


def make_dropping(num_classes: int) -> torch.nn.Module:
    """Build a model with dropout, which draws as many numbers as there are rows, and which takes its time."""
    model = torch.nn.Sequential(make(num_classes), torch.nn.Dropout(0.2))
    model.register_forward_pre_hook(lambda model, _: time.sleep(0.015) if model.training else None)
    return model


# What is drawn for an image must not depend on the process that decodes it.
STREAMED = {
    "streamed": ["method=fgr", "train.augment=none"],
    "streamed and cropped": ["method=fgr", "train.augment=crop_flip"],
    "streamed, cropped before the filter": ["method=fgr-released", "train.augment=crop_flip", "train.keep=last"],
    "streamed views": ["method=augmix", "train.augment=crop_flip"],
}


def streamed(folder: str, own: list[str]) -> dict[str, object]:
    """Decode from disk, every process its share."""
    words = ["data.name=folder", f"data.root={folder}", "data.size=32", "data.loader=stream", "data.workers=0"]
    words += ["train.batch_size=19", "train.epochs=2", "filter.ratio=0.2"]
    settings = load_config("demo", [*words, *own, "train.start=0.5", "evaluation.batch_size=4"])
    dataset = load_dataset(settings)
    torch.manual_seed(0)
    run = run_with(settings, dataset, Plain()).state
    return {
        "weights": {key: tensor.clone() for key, tensor in run.model.state_dict().items()},
        "losses": [entry["loss"] for entry in run.history],
        "validation": [entry["validation"]["nll"] for entry in run.history],
    }


def statistics() -> dict[str, object]:
    """Train with batch-norm, whose running means are averaged over the processes."""
    words = ["method=ce", "train.epochs=1", "train.learning_rate=1e-9", "train.batch_size=50"]
    dataset = data.load("shapes", train=150, validation=37, test=45)
    run = run_with(load_config("demo", [*SIZES, *words]), dataset).state
    buffers = torch.cat([buffer.flatten() for buffer in run.model.buffers() if buffer.is_floating_point()])
    first, *others = _distributed.all_gather_object(buffers)
    assert all(torch.equal(first, other) for other in others), "all processes have the same statistics"
    try:
        set_up(load_config("demo", [*SIZES, "train.sync_batch_norm=true"]), dataset)
        refused = ""
    except ValueError as error:
        refused = str(error)
    first_layer = next(m for m in run.model.modules() if isinstance(m, torch.nn.BatchNorm2d))
    found = {"mean": first_layer.running_mean.clone(), "variance": first_layer.running_var.clone()}
    return {**found, "refused": refused}


def run_all(folder: str) -> dict[str, object]:
    results: dict[str, object] = {name: streamed(folder, own) for name, own in STREAMED.items()}
    for name in CASES:
        settings = config(name)
        dataset = data.load("shapes", train=150, validation=37, test=45)
        torch.manual_seed(0)
        run = run_with(settings, dataset, Plain()).state
        results[name] = {
            "weights": {key: tensor.clone() for key, tensor in run.model.state_dict().items()},
            "losses": [entry["loss"] for entry in run.history],
            "validation": [entry["validation"]["nll"] for entry in run.history],
        }
    results["statistics"] = statistics()
    shifted = evaluate(run.model, dataset, corruptions=["contrast"], batch_size=10, progress=False)
    results["evaluation"] = [shifted.clean.nll, *(cell.nll for cell in shifted.shifts)]
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.BUCKET = 2000  # so that there are several
    _distributed.initialise()
    found = run_all(sys.argv[2])
    same = _distributed.all_gather_object(found["soft_ece"]["weights"]["layers.0.weight"])
    assert all(torch.equal(same[0], other) for other in same), "all processes have the same weights"
    if _distributed.rank() == 0:
        torch.save(found, Path(sys.argv[1]))
    _distributed.destroy()
    from leaving import assert_nobody_is_left  # not before: it loads a module that `initialise` has to load in time

    assert_nobody_is_left()
