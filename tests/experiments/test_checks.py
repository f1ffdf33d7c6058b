"""What can be known before training is told before training."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shiftcal.data import Dataset
from shiftcal.data.split import MemorySplit
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.run import complete, train
from shiftcal.experiments.setup import load_dataset

SMALL = ["data.train=64", "data.validation=32", "data.test=32", "train.epochs=2"]


def config(*overrides: str) -> Config:
    return load_config("demo", [*SMALL, *overrides])


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return load_dataset(config())


def refused(config: Config, dataset: Dataset, out: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        complete(config, out, dataset=dataset, progress=False)
    assert not out.exists(), "nothing was trained or written"


def test_corrupted_sets_and_frost_that_do_not_exist(dataset: Dataset, tmp_path: Path) -> None:
    missing = config("evaluation.corruptions=['fog']", f"evaluation.corrupted='{tmp_path}/nowhere'")
    refused(missing, dataset, tmp_path / "run", "a folder with fog.npy or fog/1")
    np.save(tmp_path / "fog.npy", np.zeros((5 * 31, 32, 32, 3), np.uint8))
    short = config("evaluation.corruptions=['fog']", f"evaluation.corrupted='{tmp_path}'")
    refused(short, dataset, tmp_path / "run", "32 images for each severity")
    frost = config("evaluation.corruptions=['frost']", f"evaluation.frost='{tmp_path}/nowhere'")
    refused(frost, dataset, tmp_path / "run", "nowhere")


def test_a_tree_of_corrupted_images_that_lacks_a_severity(dataset: Dataset, tmp_path: Path) -> None:
    (tmp_path / "fog" / "1" / dataset.classes[0]).mkdir(parents=True)
    tree = config("evaluation.corruptions=['fog']", f"evaluation.corrupted='{tmp_path}'")
    refused(tree, dataset, tmp_path / "run", "fog/1")


def test_images_too_small_for_a_corruption(dataset: Dataset, tmp_path: Path) -> None:
    tiny = MemorySplit(dataset.test.images[..., :2, :2], dataset.test.targets)
    settings = config("evaluation.corruptions=['glass_blur']")
    refused(settings, replace(dataset, test=tiny), tmp_path / "run", "images")


@pytest.mark.parametrize("name", ["train", "validation"])
def test_one_class_only(dataset: Dataset, tmp_path: Path, name: str) -> None:
    split = getattr(dataset, name)
    one = MemorySplit(split.images, torch.zeros_like(split.targets))
    found = f"`{name}` should be images of at least two classes"
    refused(config(), replace(dataset, **{name: one}), tmp_path / "run", found)


def test_a_data_set_of_one_class(dataset: Dataset, tmp_path: Path) -> None:
    splits = {n: MemorySplit(s.images, s.targets * 0) for n in ("train", "test") for s in [getattr(dataset, n)]}
    splits["validation"] = splits["test"]
    single = replace(dataset, classes=("thing",), shifts={}, **splits)
    refused(config(), single, tmp_path / "run", r"`classes` should be at least two. Found `classes = 1 \(thing\)`")


def test_a_ratio_that_leaves_no_original_image(dataset: Dataset, tmp_path: Path) -> None:
    settings = config("filter.ratio=0.995")
    refused(settings, dataset, tmp_path / "run", "`filter.ratio` should be small enough to leave some of 64 images")
    with pytest.raises(ValueError, match=r"filter\.ratio"):
        train(settings, dataset, progress=False)
    complete(config("filter.ratio=0.995", "method=ce"), tmp_path / "run", dataset=dataset, progress=False)
