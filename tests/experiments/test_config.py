import json
import math
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from shiftcal.experiments.config import Config, all_keys, config_of_run, from_dict, load_config
from shiftcal.experiments.recipes import recipe_names
from shiftcal.experiments.setup import stage_of
from shiftcal.methods import METHODS, Loss, Method, uses
from shiftcal.training.inputs import Inputs
from shiftcal.training.objective import objectives


def test_every_recipe_loads() -> None:
    assert "demo" in recipe_names()
    for name in recipe_names():
        assert load_config(name).recipe == name


def test_overrides_have_the_types_of_their_fields() -> None:
    config = load_config("demo", ["method=ce", "train.epochs=4", "train.learning_rate=1", "filter.qualities=[10, 20]"])
    assert (config.method, config.train.epochs, config.train.learning_rate) == ("ce", 4, 1.0)
    assert isinstance(config.train.learning_rate, float)
    assert config.filter.qualities == (10, 20)
    assert load_config("demo", ["method='ce'"]).method == "ce"
    assert load_config("demo", ["train.epochs=4", "train.epochs=5"]).train.epochs == 5


def test_a_recipe_can_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('method = "ce"\n[train]\nepochs = 2\n')
    config = load_config(str(path))
    assert (config.recipe, config.method, config.train.epochs) == ("mine", "ce", 2)


def test_the_start_is_rounded_as_the_paper_has_it() -> None:
    assert load_config("demo", ["train.epochs=350"]).train.start_epoch == 200
    assert load_config("demo", ["train.epochs=20"]).train.start_epoch == 11
    assert load_config("demo", ["train.epochs=10"]).train.start_epoch == 6
    assert load_config("demo", ["train.start=0"]).train.start_epoch == 0


def test_a_config_survives_json() -> None:
    config = load_config("demo", ["seed=3", "train.clip_norm=2.0"])
    assert from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().seed = 3


def test_every_key_says_what_it_is() -> None:
    keys = dict(all_keys())
    assert {"method", "train.epochs", "filter.ratio", "evaluation.also"} <= set(keys)
    assert [name for name, field in keys.items() if not (field.description or "").endswith(".")] == []


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("dmo", "seed=1", r"`recipe` should be one of demo, .*Found `recipe = 'dmo'`. Did you mean 'demo'\?"),
        ("none.toml", "seed=1", r"`recipe` should be a TOML file or one of demo, .*Found `recipe = 'none.toml'`"),
        ("demo", "method=fgrr", r"`method` should be one of .*fgr.* Did you mean 'fgr'\?"),
        (
            "demo",
            "train.epoch=3",
            r"Found `key = train.epoch`. Did you mean 'train.epochs'\?",
        ),
        (
            "demo",
            "epochs=3",
            r"`key` should be a key of the configuration. Found `key = epochs`. Did you mean 'train.epochs'\?",
        ),
        (
            "demo",
            "trian.epochs=3",
            r"`key` should be a key of the configuration. Found `key = trian`. Did you mean 'train'\?",
        ),
        ("demo", "train.epochs=three", r"`train.epochs` should be of type int. Found `train.epochs = 'three'`"),
        ("demo", "train.epochs=2.5", "of type int. Found `train.epochs = 2.5`"),
        ("demo", "train.epochs=true", "of type int. Found `train.epochs = True`"),
        ("demo", "train.warmup=1", r"`train.warmup` should be in \[0, 1\)"),
        ("demo", "train.epochs=0", "`train.epochs` should be positive. Found `train.epochs = 0`"),
        ("demo", "train.schedule=cosin", "`train.schedule` should be one of"),
        ("demo", "train.start=1.5", r"`train.start` should be a fraction in \[0, 1\]"),
        ("demo", "filter.ratio=1", r"`filter.ratio` should be in \[0, 1\)"),
        ("demo", "filter.qualities=[0]", r"`filter.qualities` should be integers in 1..100, at least one"),
        ("demo", "filter.qualities=15", "`filter.qualities` should be a list"),
        ("demo", "filter=3", "`filter` should be a section"),
        ("demo", "seed.x=3", "`seed.x` should be a key. Found .*'seed' is a value, not a section"),
        ("demo", "seed", "`set` should be of the form key=value. Found `set = 'seed'`"),
        ("demo", "seed=-1", "`seed` should be in 0..2³²−1"),
        ("demo", "seed=99999999999999999999", "`seed` should be in 0..2³²−1"),
        ("demo", "method=FGR", r"Did you mean 'fgr'\?"),
        (
            "demo",
            "train.learning_rate=inf",
            "`train.learning_rate` should be finite. Found `train.learning_rate = inf`",
        ),
        ("demo", "train.decay=nan", "`train.decay` should be finite"),
        ("demo", "evaluation.bins=100000000", "`evaluation.bins` should be in 1..1000"),
        ("demo", f"train.learning_rate=1{'0' * 400}", "`train.learning_rate` should be of type float"),
        ("demo", "filter.qualities=[[15]]", "`filter.qualities` should be of type int"),
        ("demo", "train.milestones=[[[]]]", "`train.milestones` should be of type int"),
        ("demo", "train.mean=[[1], [2], [3]]", "`train.mean` should be of type float"),
        ("demo", "evaluation.corruptions=[['fog']]", "`evaluation.corruptions` should be of type str"),
        ("demo", "data.train=-5", "`data.train` should be positive"),
        ("demo", "data.texture_match=7", r"`data.texture_match` should be in \[0, 1\]"),
        ("demo", "train.track=['tb']", "`train.track` should be of tensorboard, wandb"),
        ("demo", "train.optimizer=sdg", "should be one of adam, adamw, sgd. .*Did you mean 'sgd'"),
    ],
)
def test_bad_input(recipe: str, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_config(recipe, [override])
    assert "\n" not in str(caught.value)


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(ValueError, match=r"`train.nesterov` should be false without train.momentum"):
        load_config("demo", ["train.nesterov=true", "train.momentum=0"])


def test_a_broken_recipe(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'method = "\xe9"')
    with pytest.raises(ValueError, match="`recipe` should be a text file in UTF-8"):
        load_config(str(latin))
    path = tmp_path / "broken.toml"
    path.write_text("method = \n")
    with pytest.raises(ValueError, match="`recipe` should be valid TOML"):
        load_config(str(path))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("data.fit=strech", r"`data.fit` should be one of crop, stretch. .*Did you mean 'stretch'\?"),
        ("data.loader=disk", "`data.loader` should be one of auto, memory, stream"),
        ("data.size=0", "`data.size` should be positive"),
        ("train.milestones=[-5]", "`train.milestones` should be epochs, at least 1"),
        ("train.decay=0", r"`train.decay` should be in \(0, 1\]"),
        ("train.input_size=0", "`train.input_size` should be positive"),
        ("train.mean=[0.5, 0.5]", "`train.mean` should be three numbers"),
        ("train.std=[0.5, 0.5, 0.0]", "`train.std` should be three positive numbers"),
        ("train.optimizer=lion", "`train.optimizer` should be one of adam, adamw, sgd"),
        ("engine.precision=fp16", "`engine.precision` should be one of auto, bf16, fp32"),
        ("engine.capture=yes", "`engine.capture` should be one of auto, off"),
        ("engine.compile=maybe", "`engine.compile` should be one of auto, off, on"),
        ("finetune.epochs=0", "`finetune.epochs` should be positive"),
        ("finetune.views=-1", "`finetune.views` should be at least 0"),
        ("finetune.filtered_views=0", "`finetune.filtered_views` should be at least 1 with finetune.views"),
        ("finetune.learning_rate=0", "`finetune.learning_rate` should be positive"),
        ("finetune.gamma=-1", "`finetune.gamma` should be at least 0"),
    ],
)
def test_what_came_later_is_checked_too(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config("demo", [word])


def test_the_config_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(load_config("demo", ["seed=3"]).to_dict()))
    assert config_of_run(tmp_path, ["method=ce"]) == load_config("demo", ["seed=3", "method=ce"])
    with pytest.raises(ValueError, match=r"`directory` should be one of a run, with config.json"):
        config_of_run(tmp_path / "missing")


def test_a_row_and_a_loss_of_a_users_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows_for_test.py").write_text(
        "from shiftcal.losses import cross_entropy\nfrom shiftcal.methods import Loss, Method\n"
        "def doubled(logits, targets):\n    return 2 * cross_entropy(logits, targets)\n"
        "mine = Method(Loss('rows_for_test:doubled'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = load_config("demo", ["method=rows_for_test:mine"])
    plain, _ = objectives(config.row, torch.nn.Linear(2, 2), config.train, config.gamma, config.constraint)
    inputs = Inputs(torch.zeros(3, 2), torch.tensor([0, 1, 1]), torch.zeros(3, dtype=torch.bool))
    assert plain.main(torch.zeros(3, 2), inputs) == pytest.approx(2 * math.log(2))
    for name in ("rows_for_test:doubled", "rows_for_test:none", "nowhere:row"):
        with pytest.raises(ValueError, match=r"`method` should be package.module:row"):
            load_config("demo", [f"method={name}"])


def test_the_smoothing_of_labels_is_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([1])
    inputs = Inputs(torch.zeros(1, 3), targets, torch.zeros(1, dtype=torch.bool))
    for method in ("ls", "ls+views"):
        for words, smoothing in (([], 0.05), (["train.smoothing=0.2"], 0.2)):
            config = load_config("demo", [f"method={method}", *words])
            plain, _ = objectives(config.row, torch.nn.Linear(2, 2), config.train, config.gamma, config.constraint)
            log_p = logits.log_softmax(-1)
            expected = -(1 - smoothing) * log_p[0, 1] - smoothing * log_p.mean()
            torch.testing.assert_close(plain.main(logits, inputs), expected)
            tuned = stage_of(config.model_copy(update={"method": "ls"})).method
            assert tuned.loss.smoothing == smoothing, "fine-tuning too"
    assert load_config("demo", ["method=ce", "train.smoothing=0.2"]).row.loss.smoothing is None
    monkeypatch.setitem(METHODS, "mine", Method(Loss("label_smoothing")))
    mine = load_config("demo", ["method=mine", "train.smoothing=0.2"]).row
    assert (mine.loss.smoothing, uses(METHODS["mine"], "train.smoothing")) == (0.2, True), "a user's row"
