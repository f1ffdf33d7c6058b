"""Methods, losses, data sets and models of a user's own package: by plugin, by entry point, by path."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import invoke

from shiftcal import _plugins, data, losses, methods, models
from shiftcal.experiments.config import config_of_run, from_dict, load_config
from shiftcal.experiments.finished import reevaluate
from shiftcal.experiments.grid import complete_all
from shiftcal.methods import Loss, Method

PLUGIN = """
from pathlib import Path

from torch import nn

from shiftcal import data, losses, methods, models
from shiftcal.methods import Constraint, Loss, Method

Path(__file__).with_name("ran").touch()


def squared(logits, targets):
    return losses.brier(logits, targets) + 0.1 * logits.square().mean()


def halves(seed=0, train=6000, validation=1000, test=2000):
    return data.shapes(seed=seed, train=train, validation=validation, test=test // 2)


def flat(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, classes))


losses.register("squared", squared)
methods.register("mine", Method(Loss("squared"), weights="average"))
data.register("halves", halves)
models.register("flat", flat)
row = Method(Loss("my_plugin:squared"))


def each(logits, targets):
    return logits.square().mean(1)


per_sample = Method(Loss("my_plugin:each"))
unmasked = Method(Loss("my_plugin:squared"), constraint=Constraint("my_plugin:squared"))
"""
TINY = ["data.train=64", "data.validation=32", "data.test=32", "train.epochs=1", "evaluation.corruptions=[]"]
OPTIONS = [word for item in TINY for word in ("--set", item)]
NAMED = ["method=mine", "data.name=halves", "train.model=flat"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to work in that holds a plugin; what it registered is forgotten afterwards."""
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    tables = (methods.ADDED, losses.ADDED, data.ADDED, models.ADDED)
    before = [dict(table._added) for table in tables]
    yield tmp_path
    for table, added in zip(tables, before, strict=True):
        table._added = added
    forget()


def forget() -> None:
    """Be a process that has imported no plugin."""
    _plugins._LOADED.clear()
    sys.modules.pop("my_plugin", None)
    for table in (methods.ADDED, losses.ADDED, data.ADDED, models.ADDED):
        table._added = {}


def run_of(place: Path) -> Path:
    words = [word for item in NAMED for word in ("--set", item)]
    code, _, stderr = invoke("train", "demo", "--plugin", "my_plugin", *OPTIONS, *words, "--out", place / "run")
    assert code == 0, stderr
    return place / "run"


@pytest.mark.slow
def test_a_run_with_a_plugin_says_so_and_is_found_again(place: Path) -> None:
    run = run_of(place)
    record = json.loads((run / "record.json").read_text())
    assert (record["method"], record["config"]["plugins"]) == ("mine", ["my_plugin"])
    assert record["data"]["counts"]["test"] == 16
    assert record["weights"]["kept"] == "average"
    forget()
    (place / "ran").unlink()
    for command in (
        ["eval", run],
        ["export", run, "--calibrator", "none", "--to", "m.pt2"],
        ["audit", run, "--out", "a"],
    ):
        code, _, stderr = invoke(*command)
        expected = "Parameter `plugins` should be given (--plugin my_plugin), or the run trusted (--trust)"
        assert (code, stderr.count("\n"), stderr.startswith(expected)) == (2, 1, True), stderr
    assert not (place / "ran").exists()
    assert invoke("eval", run, "--plugin", "my_plugin")[0] == 0
    forget()
    assert invoke("eval", run, "--trust")[0] == 0
    forget()
    again = invoke("train", "demo", "--plugin", "my_plugin", *OPTIONS, "--set", "method=ce", "--out", run, "--resume")
    assert (again[0], "another run has" in again[2]) == (2, True)
    code, _, stderr = invoke("finetune", run, "--plugin", "my_plugin", "--set", "finetune.epochs=1", "--out", "tuned")
    assert code == 0, stderr


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("per_sample", "`loss` should be a function that returns the mean over a batch. Found `loss = shape"),
        ("unmasked", "`constraint.loss` should be a function that takes `mask`"),
    ],
)
def test_losses_of_another_form_are_named(row: str, said: str) -> None:
    options = ("--plugin", "my_plugin", "--set", f"method=my_plugin:{row}")
    code, _, stderr = invoke("train", "demo", *options, *OPTIONS, "--out", "run")
    assert code == 2
    assert said in stderr
    assert "Traceback" not in stderr


def test_what_a_stored_config_names_is_imported_on_trust_alone(place: Path) -> None:
    for key, value in (("plugins", ["my_plugin"]), ("method", "my_plugin:row"), ("data", {"name": "my_plugin:halves"})):
        (place / "config.json").write_text(json.dumps(load_config("demo", TINY).to_dict() | {key: value}))
        with pytest.raises(ValueError, match=r"or the run trusted \(--trust\)"):
            config_of_run(place)
    assert not (place / "ran").exists()
    assert config_of_run(place, trust=True).data.name == "my_plugin:halves", "which is imported when it is loaded"


@pytest.mark.slow
def test_runs_side_by_side_import_it_too(place: Path) -> None:
    configs = {f"mine-{s}": load_config("demo", [*TINY, *NAMED, f"seed={s}"], ["my_plugin"]) for s in (0, 1)}
    assert [record.method for record in complete_all(configs, place / "grid", workers=2)] == ["mine", "mine"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # ray's own
def test_runs_on_ray_import_it_too(place: Path) -> None:
    ray = pytest.importorskip("ray")
    source = str(Path(sys.modules["shiftcal"].__file__).parents[1])
    environment = {"env_vars": {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}}
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    try:
        config = load_config("demo", [*TINY, *NAMED], ["my_plugin"])
        (record,) = complete_all({"mine-0": config}, place / "grid", "ray")
    finally:
        ray.shutdown()
    assert (record.method, record.config["plugins"]) == ("mine", ["my_plugin"])


def test_a_data_set_by_path(place: Path) -> None:
    words = ["--set", "data.name=my_plugin:halves", "--set", "method=my_plugin:row"]
    sys.path.append("")
    assert invoke("train", "demo", *OPTIONS, *words, "--out", place / "run")[0] == 0
    assert json.loads((place / "run" / "record.json").read_text())["data"]["counts"]["test"] == 16
    (place / "other.py").write_text("def number():\n    return 3\nnothing = 4\n")
    for name, said in (("number", "which returns a int"), ("nothing", "a int"), ("absent", "AttributeError")):
        code, _, stderr = invoke("train", "demo", "--set", f"data.name=other:{name}", "--out", place / "bad")
        assert (code, "`data.name`" in stderr, said in stderr) == (2, True, True), stderr
    assert not (place / "bad").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("from shiftcal import methods\nmethods.register('ce', methods.METHODS['fgr'])", "not one of shiftcal's"),
        ("from shiftcal import losses\nlosses.register('soft_ece', print)", "not one of shiftcal's"),
        ("from shiftcal import models\nmodels.register('small', print)", "not one of shiftcal's"),
        ("from shiftcal import data\ndata.register('shapes', print)", "not one of shiftcal's"),
        ("from shiftcal import methods\nmethods.register('a/b', methods.METHODS['fgr'])", "letters, digits"),
        ("from shiftcal import methods\nmethods.register('mine', 3)", "mine, a int"),
        ("from shiftcal import losses\nlosses.register('mine', 3)", "mine, a int"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_plugin_that_cannot_be_imported_is_one_line(place: Path, text: str, said: str) -> None:
    (place / "my_plugin.py").write_text(text)
    code, stdout, stderr = invoke("train", "demo", "--plugin", "my_plugin", "--out", place / "run")
    assert (code, stdout, stderr.count("\n")) == (2, "", 1), stderr
    assert stderr.startswith("Parameter `plugins` should be modules that can be imported. Found `plugins = my_plugin (")
    assert said in stderr
    assert not (place / "run").exists()


def test_a_name_that_nobody_registered_tells_of_plugins(place: Path) -> None:
    code, _, stderr = invoke("train", "demo", "--set", "method=mine", "--out", place / "run")
    assert (code, "(--plugin MODULE, or the key `plugins`)" in stderr) == (2, True)
    with pytest.raises(ValueError, match="`plugins` should be names of modules"):
        from_dict({"plugins": ["../my_plugin"]})
    with pytest.raises(ValueError, match="`plugins` should be a list"):
        from_dict({"plugins": "my_plugin"})


def test_a_name_belongs_to_the_first_that_registers_it(place: Path) -> None:
    methods.register("theirs", Method(Loss("brier")))
    methods.register("theirs", Method(Loss("brier")))  # the same row again is no other
    with pytest.raises(ValueError, match="no other plugin has registered"):
        methods.register("theirs", Method(Loss("focal")))
    assert methods.find("theirs").loss.name == "brier"


@pytest.fixture
def installed(place: Path) -> Path:
    """Packages on the path that announce names, good and bad."""
    info = place / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[shiftcal.methods]\nannounced = my_plugin:row\nce = my_plugin:row\nbroken = absent_module:row\n"
        "[shiftcal.losses]\nsquared = my_plugin:squared\n"
        "[shiftcal.data]\nhalved = my_plugin:halves\n[shiftcal.models]\nlinear = my_plugin:flat\n"
    )
    sys.path.append(str(place))
    return place


def test_entry_points_are_found_by_name_when_they_are_asked_for(installed: Path) -> None:
    assert {"announced", "broken"} <= set(methods.ADDED.names())
    assert not (installed / "ran").exists(), "listing imports nothing"
    assert methods.find("ce").loss.name == "cross_entropy", "shiftcal's own names stay"
    assert not (installed / "ran").exists()
    assert methods.find("announced").loss.name == "my_plugin:squared"
    assert (losses.find("squared").__name__, data.find("halved").__name__) == ("squared", "halves")
    assert sum(p.numel() for p in models.build("linear", 4).parameters()) == 3072 * 4 + 4
    with pytest.raises(ValueError, match=r"`method` should be one whose entry point can be imported.*my-package"):
        methods.find("broken")


def test_entry_points_that_a_run_names_need_trust(installed: Path) -> None:
    words = ["--set", "method=announced", "--set", "train.model=linear"]
    assert invoke("train", "demo", *OPTIONS, *words, "--out", installed / "run")[0] == 0
    forget()
    (installed / "ran").unlink()
    with pytest.raises(ValueError, match=r"trusted \(--trust\): my_plugin:row would be imported"):
        reevaluate(installed / "run", progress=False)
    assert not (installed / "ran").exists()
    assert reevaluate(installed / "run", trust=True, progress=False).method == "announced"
