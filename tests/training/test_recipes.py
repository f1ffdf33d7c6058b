"""Every recipe: its real model and a stand-in for its data, two steps of cross-entropy and of FGR."""

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from stand_ins import Cifar, write_class_folders, write_tiny_imagenet

from shiftcal import data
from shiftcal.data.dataset import Dataset, Split
from shiftcal.training.config import load_config, recipe_names
from shiftcal.training.loop import load_dataset, train


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("data")
    tiny = home / "tiny-imagenet"
    write_class_folders(home / "folder", 3, 20)
    ten, hundred = (Cifar(home / name, fine=fine).folder for name, fine in (("ten", False), ("hundred", True)))
    return {
        "cifar10": ten,
        "cifar100": hundred,
        "tiny-imagenet": write_tiny_imagenet(tiny, per_class=60),
        "folder": home / "folder",
    }


def few(split: Split, n: int) -> Split:
    return Split(split.images[:n], split.targets[:n])


@pytest.mark.parametrize("method", ["ce", "fgr"])
@pytest.mark.parametrize("name", recipe_names())
def test_two_steps(name: str, method: str, roots: dict[str, Path]) -> None:
    recipe = load_config(name)
    words = [f"method={method}", "train.epochs=1", "train.start=0", "train.batch_size=2", "filter.ratio=0.5"]
    if recipe.data.name != "shapes":
        words.append(f"data.root={roots[recipe.data.name]}")
    else:
        words += ["data.train=16", "data.validation=8", "data.test=8"]
    config = load_config(name, words)
    whole = load_dataset(config)
    dataset = Dataset(
        whole.name, whole.classes, whole.mean, whole.std, few(whole.train, 4), whole.validation, whole.test
    )
    run = train(config, dataset, progress=False)
    entry = run.history[0]
    assert torch.isfinite(torch.tensor(entry["loss"]))
    assert entry["filtered"] == (2 if method == "fgr" else 0)
    assert (recipe.train.loss_reduction == "sum") == name.startswith("paper-")


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.startswith("paper-")])
def test_the_papers_numbers(name: str) -> None:
    config = load_config(name)
    tiny = config.data.name == "tiny-imagenet"
    assert config.train.epochs == (100 if tiny else 350)
    assert config.train.milestones == ((40, 60) if tiny else (150, 250))
    assert config.start_epoch == (57 if tiny else 200)
    assert (config.train.batch_size, config.train.learning_rate, config.train.momentum) == (128, 0.1, 0.9)
    assert (config.train.weight_decay, config.train.clip_norm, config.filter.ratio) == (5e-4, 2.0, 0.05)
    assert config.filter.qualities == (15, 18, 25)
    assert config.evaluation.temperature_criterion == "ece"
    models = ("resnet50", "resnet110", "densenet121", "wrn26-10")
    gammas = {
        "cifar10": dict(zip(models, [(3.0, 5.0), (4.5, 4.5), (4.0, 5.0), (1.5, 2.6)], strict=True)),
        "cifar100": dict(zip(models, [(2.0, 5.0), (3.0, 6.1), (1.5, 3.4), (1.2, 3.9)], strict=True)),
        "tiny-imagenet": {"resnet50": (3.0, 2.3), "densenet121": (2.0, 2.0)},
    }
    assert (config.gamma.fgr, config.gamma.dfl) == gammas[config.data.name][config.train.model]


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_says_how_to_run_it_and_names_what_exists(name: str) -> None:
    text = (files("shiftcal.recipes") / f"{name}.toml").read_text(encoding="utf-8")
    assert f"shiftcal {'demo' if name == 'demo' else f'train {name}'}" in text
    assert tomllib.loads(text)["data"]["name"] in data.DATASETS
