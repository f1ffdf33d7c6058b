"""Recipes: each resolves to the numbers of its protocol, and one of each base trains on a stand-in for its data."""

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from stand_ins import (
    Cifar,
    write_camelyon17,
    write_class_folders,
    write_fmow,
    write_iwildcam,
    write_tiny_imagenet,
)

from shiftcal.data import Dataset, ImageSplit
from shiftcal.experiments.checks import check_config
from shiftcal.experiments.config import load_config, to_toml
from shiftcal.experiments.recipes import headline, recipe_names, recipe_text
from shiftcal.experiments.run import train
from shiftcal.experiments.setup import load_dataset
from shiftcal.models import build


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
        "office-home": _domains(home / "office-home", ["Art", "Clipart", "Product", "Real World"]),
        "pacs": _domains(home / "pacs", ["art_painting", "cartoon", "photo", "sketch"]),
        "domains": _domains(home / "domains", ["hospital A", "hospital B", "hospital C"]),
        "camelyon17": write_camelyon17(home),
        "iwildcam": write_iwildcam(home),
        "fmow": write_fmow(home),
    }


def _domains(root: Path, names: list[str]) -> Path:
    for seed, name in enumerate(names):
        write_class_folders(root / name, 2, 10, size=(227, 227), seed=seed)
    return root


HOLDOUT = {"office-home": "Art", "pacs": "sketch", "domains": "hospital C"}


def few(split: ImageSplit, n: int) -> ImageSplit:
    chosen = torch.zeros(len(split), dtype=torch.bool)
    chosen[torch.linspace(0, len(split) - 1, n).long()] = True  # of all classes, where they come one after the other
    return split.take(chosen)


# One recipe of each base and its smallest model, two steps; that all resolve is tested without training.
TRIED = ["demo", "folder", "domains", "quick-cifar10", "paper-cifar100-resnet50", "released-cifar10-resnet50"]
LARGE = [
    "quick-pacs",
    "pacs-resnet50",
    "paper-tiny-imagenet-densenet121",
    "paper-fmow-densenet121",
    "transformer-camelyon17-deit-small",
]


@pytest.mark.parametrize("name", [*TRIED, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_two_steps(name: str, roots: dict[str, Path]) -> None:
    recipe = load_config(name)
    words = ["train.epochs=1", "train.start=0", "train.batch_size=2", "filter.ratio=0.5"]
    if recipe.data.name != "shapes":
        words.append(f"data.root={roots[recipe.data.name]}")
        words += ["train.weights=none"] if recipe.train.weights else []
        words += [f"data.holdout={HOLDOUT[recipe.data.name]}"] if recipe.data.name in HOLDOUT else []
    else:
        words += ["data.train=16", "data.validation=8", "data.test=8"]
    config = load_config(name, words)
    whole = load_dataset(config)
    parts = few(whole.train, 4), few(whole.validation, 4), whole.test
    run = train(config, Dataset(whole.name, whole.classes, whole.preprocess, *parts), progress=False)
    entry = run.history[0]
    assert torch.isfinite(torch.tensor(entry["loss"]))
    assert entry.get("filtered", 0) == (2 if config.row.low_pass else 0)


def test_every_base_is_tried() -> None:
    bases = {path.name.removesuffix(".toml") for path in (files("shiftcal.recipes") / "bases").iterdir()}
    assert {tomllib.loads(recipe_text(name)).get("extends") for name in [*TRIED, *LARGE]} == bases | {None}


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_resolves_and_names_what_exists(name: str) -> None:
    config = load_config(name)
    check_config(config)
    from_scratch = name.startswith("paper-") and config.train.weights is None
    assert (config.train.loss_reduction == "sum") == from_scratch
    assert load_config(name, ["method=ce"]).row.constraint is None


SCRATCH = [name for name in recipe_names() if name.startswith(("paper-cifar", "paper-tiny"))]
TWO_STAGE = {
    "cifar10": {"resnet50": 5.0, "resnet110": 1.5, "densenet121": 5.5, "wrn26-10": 1.5},
    "cifar100": {"resnet50": 3.5, "resnet110": 4.0, "densenet121": 3.4, "wrn26-10": 2.1},
    "tiny-imagenet": {"resnet50": 3.6, "densenet121": 2.0},
}


@pytest.mark.parametrize("name", SCRATCH)
def test_the_papers_numbers(name: str) -> None:
    config = load_config(name)
    tiny = config.data.name == "tiny-imagenet"
    assert config.train.epochs == (100 if tiny else 350)
    assert config.train.milestones == ((40, 60) if tiny else (150, 250))
    assert config.train.start_epoch == (57 if tiny else 200)
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
    assert config.finetune.gamma == TWO_STAGE[config.data.name][config.train.model]


# Model, optimiser, learning rate, weight decay, batch, epochs, schedule, ρ, γ: the columns of the protocols' table.
PRETRAINED = {
    "paper-office-home-resnet50": ("imagenet-resnet50", "sgd", 0.1, 5e-4, 256, 90, "multi_step", 0.1, 3.0),
    "pacs-resnet50": ("imagenet-resnet50", "sgd", 0.1, 5e-4, 256, 90, "multi_step", 0.1, 3.0),
    "paper-iwildcam-resnet50": ("imagenet-resnet50", "adam", 3e-5, 0.0, 32, 10, "constant", 0.05, 7.0),
    "paper-fmow-densenet121": ("imagenet-densenet121", "adam", 1e-4, 0.0, 64, 60, "exponential", 0.05, 5.0),
    "paper-camelyon17-densenet121": ("imagenet-densenet121", "sgd", 1e-3, 1e-2, 512, 12, "constant", 0.05, 5.0),
    **{
        f"transformer-{data_name}-{model}": (model, "adamw", 5e-5, 0.05, 128, 20, "cosine", 0.05, 3.0)
        for data_name in ("cifar10", "cifar100", "camelyon17")
        for model in ("vit-small", "swin-tiny", "deit-small")
    },
}


@pytest.mark.parametrize("name", PRETRAINED)
def test_protocols_of_pretrained_models(name: str) -> None:
    config = load_config(name)
    own = config.train
    found = (own.model, own.optimizer, own.learning_rate, own.weight_decay, own.batch_size, own.epochs, own.schedule)
    assert (*found, config.filter.ratio, config.gamma.fgr) == PRETRAINED[name]
    assert own.weights == "pretrained"
    if "home" in name or "pacs" in name:
        assert own.milestones == (50, 70)
    if "fmow" in name:
        assert own.decay == 0.96
    assert own.augment == ("crop_flip" if "transformer-cifar" in name else "none")
    sizes = {"iwildcam": 448, "fmow": 224, "office-home": 224, "pacs": 224}
    assert config.data.size == sizes.get(config.data.name)
    assert own.input_size == (224 if name.startswith("transformer") else None)


RELEASED = {f"released-{name}-resnet50": f"paper-{name}-resnet50" for name in ("cifar10", "cifar100")}


@pytest.mark.parametrize("name", RELEASED)
def test_released_recipes_are_the_papers_but_for_the_reduction(name: str) -> None:
    released, paper = load_config(name), load_config(RELEASED[name])
    assert (released.train.loss_reduction, released.train.clip_norm, released.gamma.released) == ("mean", 2.0, 5.0)
    train = released.train.model_copy(update={"loss_reduction": "sum", "keep": None})
    same = {"recipe": paper.recipe, "method": paper.method, "train": train, "finetune": paper.finetune}
    assert released.model_copy(update=same) == paper
    second = released.finetune
    assert (second.views, second.batch_statistics, second.epochs, second.learning_rate) == (0, True, 100, 0.01)
    assert (second.schedule, second.milestones, second.clip_norm) == ("multi_step", (40, 70), 2.0)
    assert second.gamma == (5.0 if "cifar10-" in name else 3.5)


OF_WILDS = {
    "released-camelyon17": ("paper-camelyon17-densenet121", 5.0),
    "released-iwildcam": ("paper-iwildcam-resnet50", 7.0),
    "released-fmow": ("paper-fmow-densenet121", 5.0),
}


@pytest.mark.parametrize("name", OF_WILDS)
def test_released_recipes_of_wilds_are_the_papers_with_clipping_from_the_first_epoch_on(name: str) -> None:
    released, (paper_name, gamma) = load_config(name), OF_WILDS[name]
    paper = load_config(paper_name)
    assert (released.method, released.train.clip_norm, released.train.start) == ("fgr-released", 2.0, 0.0)
    assert released.gamma.released == gamma
    assert released.train.model_copy(update={"clip_norm": None, "start": paper.train.start}) == paper.train
    assert released.data == paper.data


def test_the_released_recipe_of_tiny_imagenet() -> None:
    """As long as CIFAR's, with another classifier and normalisation (the authors' code)."""
    released = load_config("released-tiny-imagenet-resnet50")
    train = released.train
    assert (train.epochs, train.milestones, train.model, train.clip_norm) == (350, (150, 250), "resnet50-pool2", 2.0)
    assert (train.mean, released.gamma.released) == ((0.485, 0.456, 0.406), 3.0)
    model = build("resnet50-pool2", 200)
    assert model.fc.in_features == 8192
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 200)


def test_every_recipe_is_one_of_these() -> None:
    ours = {"demo", "domains", "folder", "quick-cifar10", "quick-cifar100", "quick-tiny-imagenet", "quick-pacs"}
    released = {*RELEASED, *OF_WILDS, "released-tiny-imagenet-resnet50"}
    assert set(recipe_names()) == ours | set(SCRATCH) | set(PRETRAINED) | released


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipes_header_says_what_it_is_and_how_to_run_it(name: str) -> None:
    header = recipe_text(name).split("\n\n")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    assert f"shiftcal {'demo' if name == 'demo' else f'train {name}'}" in header
    assert headline(name).endswith(".")
    assert len(headline(name)) < 110
    measured = {"demo", "quick-cifar10", "quick-cifar100"}
    assert ("Not measured" in header) == (name not in measured)
    assert ("Expected" in header and "Time on" in header) == (name in measured)


def test_a_recipe_extends_one_that_stands_on_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "quick-cifar10"\nseed = 3\n[train]\nepochs = 7\n')
    made, base = load_config(str(tmp_path / "own.toml")), load_config("quick-cifar10")
    assert (made.recipe, made.seed, made.train.epochs) == ("own", 3, 7)
    assert made.train == base.train.model_copy(update={"epochs": 7})
    assert made.data == base.data
    (tmp_path / "child.toml").write_text('extends = "flat.toml"\n[gamma]\nfgr = 9.0\n')
    (tmp_path / "flat.toml").write_text("[gamma]\ndfl = 8.0\n")
    gamma = load_config(str(tmp_path / "child.toml")).gamma
    assert (gamma.fgr, gamma.dfl) == (9.0, 8.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "own.toml"', "`extends` should be one that stands on its own"),
        ('extends = "elsewhere.toml"', "`extends` should be a file beside the recipe"),
        ('extends = "quick-cifar1"', "`extends` should be a base or a recipe of the package"),
        ("extends = 3", "`extends` should be the name of a recipe or a TOML file"),
        ('extends = "../../etc/passwd"', "`extends` should be a base or a recipe of the package"),
    ],
)
def test_what_cannot_be_extended(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "demo"\n')
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_config(str(tmp_path / "bad.toml"))


def test_a_resolved_recipe_is_a_recipe(tmp_path: Path) -> None:
    config = load_config("paper-fmow-densenet121")
    (tmp_path / "whole.toml").write_text(to_toml(config))
    assert load_config(str(tmp_path / "whole.toml")) == config
