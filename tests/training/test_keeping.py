"""Which weights a run keeps and evaluates, in its record and after an interruption."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shiftcal.bench.run import complete
from shiftcal.evaluation import predict
from shiftcal.models import build
from shiftcal.training import loop
from shiftcal.training.config import Config, load_config
from shiftcal.training.loop import train
from shiftcal.training.run import Run, load_dataset

TINY = ["data.train=128", "data.validation=64", "data.test=64", "train.epochs=4", "train.batch_size=32"]
TINY += ["evaluation.corruptions=[]", "train.start=0.5", "method=fgr-shared"]
ALL = ["last", "best_nll", "best_ece", "average"]


def config(*overrides: str) -> Config:
    return load_config("demo", [*TINY, *overrides])


@pytest.fixture(scope="module")
def dataset() -> object:
    return load_dataset(config())


def equal(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def also(*names: str) -> str:
    return f"evaluation.also={json.dumps(names)}"


def test_each_name_is_what_it_says(dataset: object) -> None:
    made = config(also(*ALL), "train.learning_rate=0.3")
    seen = []
    run = Run(made, dataset)
    original = run.best.after_epoch

    def remember(model: torch.nn.Module, epoch: int, validation: dict[str, float]) -> None:
        seen.append((validation, {name: tensor.clone() for name, tensor in model.state_dict().items()}))
        original(model, epoch, validation)

    run.best.after_epoch = remember
    loop.go_on(run, progress=False)
    for name, key in (("best_nll", "nll"), ("best_ece", "ece")):
        model, epoch = run.weights(name)
        values = [validation[key] for validation, _ in seen]
        assert epoch == 1 + values.index(min(values))
        assert all(torch.equal(tensor, seen[epoch - 1][1][key]) for key, tensor in model.state_dict().items())
    assert run.weights("last") == (run.model, 4)
    average, _ = run.weights("average")
    assert not torch.equal(average.classifier.weight, run.model.classifier.weight)
    again, _ = run.weights("average")
    assert all(
        torch.equal(a, b) for a, b in zip(average.state_dict().values(), again.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("keep", ["last", "best_ece", "average"])
def test_the_record_tells_what_is_kept_and_has_the_others_too(dataset: object, tmp_path: Path, keep: str) -> None:
    others = [name for name in ("last", "best_ece", "average") if name != keep]
    made = config(f"train.keep={keep}", also(*others))
    record = complete(made, tmp_path / "run", dataset=dataset, progress=False)
    assert record["weights"]["kept"] == keep
    assert list(record["also"]) == others
    model = build("small", 8)
    model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    logits, targets = predict(model, dataset, dataset.test, 64)
    accuracy = float((logits.argmax(1) == targets).double().mean())
    assert record["evaluation"]["id"]["accuracy"] == pytest.approx(accuracy)
    reference = complete(config(f"train.keep={others[0]}"), tmp_path / "other", dataset=dataset, progress=False)
    kept, beside = reference["evaluation"]["id"], record["also"][others[0]]["id"]
    assert beside == {name: value for name, value in kept.items() if name != "histogram"}


def test_the_row_decides_unless_the_recipe_does() -> None:
    assert config("method=fgr-released").row.weights == "best_ece"
    assert config("method=fgr-released", "train.keep=last").row.weights == "last"
    assert config().row.weights == "last"
    with pytest.raises(ValueError, match=r"`train.keep` should be one of average, best_ece, best_nll, last"):
        config("train.keep=first")
    with pytest.raises(ValueError, match=r"`evaluation.also` should be of last, best_nll, best_ece, average"):
        config('evaluation.also=["first"]')


def test_a_resumed_run_keeps_the_same(dataset: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(also(*ALL))
    whole = train(made, dataset, progress=False)
    after_epochs = loop.train_epoch

    def stop_after_two(run: Run, *rest: object) -> object:
        if run.epochs_done == 2:
            raise KeyboardInterrupt
        return after_epochs(run, *rest)

    monkeypatch.setattr(loop, "train_epoch", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        train(made, dataset, checkpoints=tmp_path, progress=False)
    monkeypatch.undo()
    resumed = train(made, dataset, checkpoints=tmp_path, resume=True, progress=False)
    for name in ALL:
        (one, epoch), (other, same_epoch) = whole.weights(name), resumed.weights(name)
        assert epoch == same_epoch
        assert all(
            torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
        )
