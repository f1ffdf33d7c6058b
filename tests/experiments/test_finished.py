"""Finished runs: weights, config and record belong together, and nothing known is lost."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shiftcal._lock import locked
from shiftcal.data.split import MemorySplit
from shiftcal.experiments import checkpoint
from shiftcal.experiments import run as run_module
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.finished import finished, reevaluate
from shiftcal.experiments.run import complete
from shiftcal.experiments.setup import load_dataset, other_data
from shiftcal.records import read_record, write_record

SMALL = ["data.train=64", "data.validation=32", "data.test=32", "train.batch_size=32", "train.epochs=2"]


def config(*overrides: str) -> Config:
    return load_config("demo", [*SMALL, "evaluation.corruptions=[]", *overrides])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    complete(config(), out, progress=False)
    return out


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-10] ^= 0x40
    path.write_bytes(data)


def test_one_flipped_bit_is_found_and_the_record_stays(run: Path) -> None:
    before = (run / "record.json").read_bytes()
    flip_a_bit(run / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.safetensors is not what record.json tells of"):
        reevaluate(run, progress=False)
    assert (run / "record.json").read_bytes() == before
    with pytest.warns(UserWarning, match="not what record.json tells of.*made again from the last checkpoint"):
        assert finished(run) is None


def test_what_a_flipped_bit_broke_is_made_again(run: Path) -> None:
    right = (run / "model.safetensors").read_bytes()
    flip_a_bit(run / "model.safetensors")
    with pytest.warns(UserWarning, match="made again"):
        complete(config(), run, resume=True, progress=False)
    assert (run / "model.safetensors").read_bytes() == right


def test_a_config_that_is_not_the_records_is_refused(run: Path) -> None:
    changed = json.loads((run / "config.json").read_text())
    changed["data"]["texture_match"] = 0.3
    (run / "config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"config.json with data.texture_match = 0.3 instead of 0.65"):
        reevaluate(run, progress=False)


def test_weights_without_a_checksum_must_give_the_records_accuracy(run: Path) -> None:
    record = read_record(run / "record.json")
    old = record.model_copy(update={"weights": record.weights.model_copy(update={"sha256": None})})
    write_record(run / "record.json", old)
    assert reevaluate(run, progress=False).weights.sha256 == record.weights.sha256
    other = old.evaluation.clean.model_copy(update={"accuracy": 0.99})
    evaluation = old.evaluation.model_copy(update={"clean": other})
    write_record(run / "record.json", old.model_copy(update={"evaluation": evaluation}))
    with pytest.raises(ValueError, match=r"of the clean test images where record.json has 99.0%"):
        reevaluate(run, progress=False)


def test_the_evaluation_can_be_changed_and_is_remembered(run: Path) -> None:
    record = reevaluate(run, overrides=["evaluation.bins=7", "evaluation.corruptions=['fog']"], progress=False)
    assert len(record.evaluation.clean.bins.count) == 7
    assert "fog" in {cell.shift for cell in record.evaluation.shifts}
    assert read_record(run / "record.json").config["evaluation"]["bins"] == 7
    again = reevaluate(run, progress=False)  # config.json and the record still belong together
    assert again.evaluation.clean == record.evaluation.clean
    assert complete(config("evaluation.bins=7", "evaluation.corruptions=['fog']"), run, resume=True, progress=False)


def test_a_kill_between_record_and_config_is_mended_by_the_next_evaluation(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shiftcal.experiments.finished.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            reevaluate(run, overrides=["evaluation.bins=7", "evaluation.corruptions=['fog']"], progress=False)
    assert json.loads((run / "config.json").read_text())["evaluation"]["bins"] == 15
    again = reevaluate(run, progress=False)
    assert len(again.evaluation.clean.bins.count) == 7
    assert json.loads((run / "config.json").read_text())["evaluation"] == again.config["evaluation"]


def test_a_finished_run_is_not_kept_for_other_data(run: Path) -> None:
    dataset = load_dataset(config())
    complete(config(), run, resume=True, dataset=dataset, progress=False)
    other = replace(dataset, classes=tuple(reversed(dataset.classes)))
    with pytest.raises(ValueError, match=r"`out` should be one of a run on the same data.*classes"):
        complete(config(), run, resume=True, dataset=other, progress=False)
    (run / "record.json").unlink()
    with pytest.raises(ValueError, match=r"`checkpoints` should be those of a run on the same data.*classes"):
        complete(config(), run, resume=True, dataset=other, progress=False)
    fewer = replace(dataset, test=MemorySplit(dataset.test.images[1:], dataset.test.targets[1:]))
    with pytest.raises(ValueError, match=r"`checkpoints` should be those of a run on the same data.*counts.test = 32"):
        complete(config(), run, resume=True, dataset=fewer, progress=False)
    complete(config(), run, resume=True, dataset=dataset, progress=False)


def test_images_loaded_in_another_way_may_be_others_by_the_unreadable_ones() -> None:
    here = {"classes": ["a", "b"], "counts": {"train": 239}, "targets": "x", "loader": "memory"}
    assert other_data(here, here | {"counts": {"train": 240}, "targets": "y", "loader": "stream"}) is None
    assert other_data(here, here | {"counts": {"train": 240}}) == "counts.train = 240 instead of 239"
    assert other_data(here, here | {"classes": ["a", "c"], "loader": "stream"}) is not None


@pytest.mark.slow
def test_two_ranks_evaluate_a_run_again(run: Path) -> None:
    before = read_record(run / "record.json").evaluation.clean.accuracy
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "shiftcal", "eval", str(run)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert read_record(run / "record.json").evaluation.clean.accuracy == before


def test_an_evaluation_holds_its_run(run: Path) -> None:
    with locked(run), pytest.raises(ValueError, match="`out` should be a directory that nobody else is using"):
        reevaluate(run, progress=False)


def test_a_config_that_fine_tunes_trains_no_whole_network() -> None:
    tuned = config().model_copy(update={"finetuned_from": "nowhere.pt"})
    with pytest.raises(ValueError, match=r"`config` should be one that trains a whole network.*shiftcal finetune"):
        run_module.train(tuned, progress=False)


def test_a_record_is_not_replaced_by_one_that_knows_less(run: Path) -> None:
    reevaluate(run, overrides=["evaluation.corruptions=['fog']"], progress=False)
    with pytest.raises(ValueError, match=r"one without fog"):
        reevaluate(run, overrides=["evaluation.corruptions=[]"], progress=False)
    with pytest.raises(ValueError, match=r"one without shift_aware"):
        reevaluate(run, overrides=["evaluation.temperatures=['clean']"], progress=False)
    with pytest.raises(ValueError, match=r"`set` should be a key of the evaluation"):
        reevaluate(run, overrides=["train.epochs=3"], progress=False)


def test_a_trained_run_can_be_finished_with_another_evaluation(run: Path) -> None:
    (run / "record.json").unlink()
    record = complete(config("evaluation.bins=5"), run, resume=True, progress=False)
    assert len(record.evaluation.clean.bins.count) == 5
    assert json.loads((run / "config.json").read_text())["evaluation"]["bins"] == 5
    (run / "record.json").unlink()
    with pytest.raises(ValueError, match=r"`evaluation.also` should be of last, which the run keeps since it began"):
        complete(config("evaluation.also=['average']"), run, resume=True, progress=False)


def test_a_directory_deleted_during_the_run_is_complete_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = run_module.saving

    @contextmanager
    def and_then_deleted(*args: Any, **options: Any) -> Iterator[Any]:
        with saving(*args, **options) as hooks:
            yield hooks
        shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(run_module, "saving", and_then_deleted)
    with pytest.warns(UserWarning, match="config.json was deleted during the run"):
        complete(config(), tmp_path / "run", progress=False)
    assert finished(tmp_path / "run") is not None
    reevaluate(tmp_path / "run", progress=False)


def test_functions_that_a_config_names_are_called_only_on_trust(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
        "from shiftcal.models import build\ndef make(classes):\n    return build('small', classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("config.json", "record.json"):
        content = json.loads((run / name).read_text())
        (content if name == "config.json" else content["config"])["train"]["model"] = "planted:make"
        (run / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"or the run trusted \(--trust\): planted:make would be imported and called"):
        reevaluate(run, progress=False)
    assert not (tmp_path / "ran").exists()
    assert reevaluate(run, trust=True, progress=False).evaluation.clean.n == 32
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["record.json", "config.json", "checkpoint"])
def test_no_file_of_a_run_lets_a_module_be_imported(
    file: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them names it, also when the others are in order and the run is only resumed."""
    module = f"planted_in_{file.partition('.')[0]}"
    (tmp_path / f"{module}.py").write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"method": f"{module}:row"}
    if file == "checkpoint":
        (run / "record.json").unlink()
        last = max((run / "checkpoints").glob("epoch-*"))
        state = torch.load(last / "state.pt", weights_only=True)
        state["config"] |= named
        history = (last / "history.json").read_bytes()
        tensors = load_file(last / "model.safetensors")
        checkpoint.write(run / "checkpoints", last.name, tensors, state, history)
    else:
        content = json.loads((run / file).read_text())
        (content if file == "config.json" else content["config"]).update(named)
        (run / file).write_text(json.dumps(content))
    for use in (
        lambda: reevaluate(run, progress=False) if file != "checkpoint" else complete(config(), run, resume=True),
        lambda: complete(config("seed=7"), run, resume=True, progress=False),
    ):
        with pytest.raises(ValueError, match="should be"):
            use()
    assert not (tmp_path / "ran").exists()
