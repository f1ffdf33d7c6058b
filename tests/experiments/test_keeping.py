"""Which weights a run keeps and evaluates, in its record and after an interruption."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from running import finish, run_with, same_weights
from safetensors.torch import load_file

from shiftcal.evaluation import predict
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.run import complete
from shiftcal.experiments.setup import load_dataset, set_up
from shiftcal.models import build

TINY = ["data.train=128", "data.validation=64", "data.test=64", "train.epochs=4", "train.batch_size=32"]
TINY += ["evaluation.corruptions=[]", "train.start=0.5", "method=fgr-shared"]
ALL = ["last", "best_nll", "best_ece", "average"]


def config(*overrides: str) -> Config:
    return load_config("demo", [*TINY, *overrides])


@pytest.fixture(scope="module")
def dataset() -> object:
    return load_dataset(config())


def also(*names: str) -> str:
    return f"evaluation.also={json.dumps(names)}"


def test_each_name_is_what_it_says(dataset: object) -> None:
    made = config(also(*ALL), "train.learning_rate=0.3")
    seen = []
    setup = set_up(made, dataset)
    original = setup.state.best.after_epoch

    def remember(model: torch.nn.Module, epoch: int, validation: dict[str, float]) -> None:
        seen.append((validation, {name: tensor.clone() for name, tensor in model.state_dict().items()}))
        original(model, epoch, validation)

    setup.state.best.after_epoch = remember
    run = finish(setup, made).state
    for name, key in (("best_nll", "nll"), ("best_ece", "ece")):
        model, epoch = run.weights(name, setup.task.unseen_images)
        values = [validation[key] for validation, _ in seen]
        assert epoch == 1 + values.index(min(values))
        assert all(torch.equal(tensor, seen[epoch - 1][1][key]) for key, tensor in model.state_dict().items())
    assert run.weights("last", setup.task.unseen_images) == (run.model, 4)
    average, _ = run.weights("average", setup.task.unseen_images)
    assert not torch.equal(average.classifier.weight, run.model.classifier.weight)
    again, _ = run.weights("average", setup.task.unseen_images)
    assert all(
        torch.equal(a, b) for a, b in zip(average.state_dict().values(), again.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("keep", ["last", *(pytest.param(k, marks=pytest.mark.slow) for k in ("best_ece", "average"))])
def test_the_record_tells_what_is_kept_and_has_the_others_too(dataset: object, tmp_path: Path, keep: str) -> None:
    others = [name for name in ("last", "best_ece", "average") if name != keep]
    made = config(f"train.keep={keep}", also(*others))
    record = complete(made, tmp_path / "run", dataset=dataset, progress=False)
    assert record.weights.kept == keep
    assert list(record.also) == others
    model = build("small", 8)
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    found = predict(model, dataset.test, dataset.preprocess)
    accuracy = float((found.logits.argmax(1) == found.targets).double().mean())
    assert record.evaluation.clean.accuracy == pytest.approx(accuracy)
    reference = complete(config(f"train.keep={others[0]}"), tmp_path / "other", dataset=dataset, progress=False)
    kept, beside = reference.evaluation.clean, record.also[others[0]].clean
    assert beside == kept.model_copy(update={"histogram": None})


def test_the_row_decides_unless_the_recipe_does() -> None:
    assert config("method=fgr-released").row.weights == "best_ece"
    assert config("method=fgr-released", "train.keep=last").row.weights == "last"
    assert config().row.weights == "last"
    with pytest.raises(ValueError, match=r"`train.keep` should be one of average, best_ece, best_nll, last"):
        config("train.keep=first")
    with pytest.raises(ValueError, match=r"`evaluation.also` should be of last, best_nll, best_ece, average"):
        config('evaluation.also=["first"]')


def test_a_resumed_run_keeps_the_same(dataset: object, tmp_path: Path) -> None:
    made = config(also(*ALL))
    whole = run_with(made, dataset)
    finish(set_up(made, dataset), made, tmp_path)
    for path in tmp_path.glob("*epoch-0004"):
        shutil.rmtree(path)
    resumed = finish(set_up(made, dataset), made, tmp_path, resume=True)
    for name in ALL:
        (one, epoch), (other, same_epoch) = (s.state.weights(name, s.task.unseen_images) for s in (whole, resumed))
        assert epoch == same_epoch
        assert same_weights(one, other)
