"""The same loaders on the real data sets, where SHIFTCAL_DATA names a folder that has them."""

import os
from pathlib import Path

import pytest
import torch

from shiftcal import data
from shiftcal.experiments.config import load_config
from shiftcal.experiments.run import train
from shiftcal.experiments.setup import evaluate_with

HOME = os.environ.get("SHIFTCAL_DATA")
SIZES = {
    "cifar10": (45_000, 5_000, 10_000, 10),
    "cifar100": (45_000, 5_000, 10_000, 100),
    "tiny-imagenet": (90_000, 10_000, 10_000, 200),
}


def root_of(name: str) -> Path:
    if HOME is None or not (Path(HOME) / name).is_dir():
        pytest.skip(f"SHIFTCAL_DATA names no folder with {name}")
    return Path(HOME) / name


def few(split: data.MemorySplit, n: int) -> data.MemorySplit:
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:n]
    return data.MemorySplit(split.images[order], split.targets[order])


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_mean(name: str) -> None:
    loaded = data.load(name, root=root_of(name), progress=False)
    train, validation, test, classes = SIZES[name]
    assert (len(loaded.train), len(loaded.validation), len(loaded.test), len(loaded.classes)) == (
        train,
        validation,
        test,
        classes,
    )
    if name == "cifar10":
        images = torch.cat([loaded.train.images, loaded.validation.images])
        mean = [images[:, c].double().mean().item() / 255 for c in range(3)]
        assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SIZES, "pacs"])
def test_a_few_steps_and_an_evaluation(name: str) -> None:
    options = {"holdout": "sketch", "size": 32} if name == "pacs" else {}
    loaded = data.load(name, root=root_of(name), progress=False, **options)
    small = data.Dataset(
        loaded.name,
        loaded.classes,
        loaded.mean,
        loaded.std,
        few(loaded.train, 512),
        few(loaded.validation, 256),
        few(loaded.test, 256),
        {shift: tuple(few(split, 256) for split in splits) for shift, splits in loaded.shifts.items()},
    )
    config = load_config("demo", ["method=fgr", "train.epochs=2", "train.start=0.5", 'evaluation.corruptions=["fog"]'])
    run = train(config, small, progress=False)
    assert run.history[-1]["filtered"] > 0
    result = evaluate_with(config, run.model, small, progress=False)
    assert result["id"]["accuracy"] > 0
    assert len(result["shifts"]) == 5 + len(loaded.shifts)
