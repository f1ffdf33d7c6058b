"""Runs and checkpoints know their classes by name, and other data is matched to them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load, save_file
from stand_ins import write_coloured_folders

from shiftcal.data.match import match_classes
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.finished import reevaluate
from shiftcal.experiments.run import complete
from shiftcal.experiments.setup import load_dataset
from shiftcal.models import class_names

ORDER = ("red", "blue", "green")  # not that of the folders


def config(root: Path, *words: str) -> Config:
    data = ["data.name=folder", f"data.root={root}", "data.size=16", "evaluation.corruptions=[]"]
    return load_config("demo", ["method=ce", "train.batch_size=24", "train.epochs=4", *data, *words])


def finetuning(root: Path, checkpoint: Path) -> Config:
    return config(root, "method=fgr", f"finetuned_from={checkpoint}", "finetune.epochs=1", "finetune.views=1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train/, val/ and test/, and a run on it whose classes have another order."""
    root = tmp_path_factory.mktemp("classes")
    for seed, (part, count) in enumerate({"train": 40, "val": 10, "test": 10}.items()):
        write_coloured_folders(root / "data" / part, count, seed=seed)
    own = config(root / "data")
    record = complete(own, root / "run", dataset=match_classes(load_dataset(own), ORDER), progress=False)
    assert record.evaluation.clean.accuracy > 0.9
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "made"))


def rename(place: Path, old: str, new: str) -> None:
    for part in ("train", "val", "test"):
        (place / "data" / part / old).rename(place / "data" / part / new)


def point_to(place: Path) -> None:
    """Let the copied run look for its data in the copied folder."""
    for name in ("config.json", "record.json"):
        content = json.loads((place / "run" / name).read_text())
        (content if name == "config.json" else content["config"])["data"]["root"] = str(place / "data")
        (place / "run" / name).write_text(json.dumps(content))


def test_record_and_weights_name_the_classes(made: Path) -> None:
    record = json.loads((made / "run" / "record.json").read_text())
    assert tuple(record["data"]["classes"]) == ORDER
    assert record["data"]["counts"] == {"train": 120, "validation": 30, "test": 30}, "the folder's, not a recipe's"
    assert class_names(made / "run" / "model.safetensors") == ORDER


def test_eval_matches_another_order_by_name(place: Path) -> None:
    before = json.loads((place / "run" / "record.json").read_text())
    again = reevaluate(place / "run", progress=False)
    assert again.evaluation.clean.accuracy == before["evaluation"]["clean"]["accuracy"]
    assert again.evaluation.clean.nll == pytest.approx(before["evaluation"]["clean"]["nll"])
    assert again.data.classes == ORDER


def test_eval_takes_fewer_classes_and_refuses_an_unknown_one(place: Path) -> None:
    point_to(place)
    for part in ("train", "val", "test"):
        shutil.rmtree(place / "data" / part / "green")
    assert reevaluate(place / "run", progress=False).evaluation.clean.accuracy > 0.85
    rename(place, "blue", "bleu")
    before = (place / "run" / "record.json").read_bytes()
    with pytest.raises(ValueError, match=r"Found `classes = 'bleu' \(nearest: blue\)`"):
        reevaluate(place / "run", progress=False)
    assert (place / "run" / "record.json").read_bytes() == before


@pytest.mark.parametrize("form", ["run", "run without names in its weights", "file"])
def test_finetune_matches_another_order_by_name(form: str, place: Path) -> None:
    checkpoint = place / "run"
    before = json.loads((checkpoint / "record.json").read_text())
    if form == "file":
        checkpoint = Path(shutil.copy(checkpoint / "model.safetensors", place / "theirs.safetensors"))
    elif form != "run":
        tensors = load((checkpoint / "model.safetensors").read_bytes())
        save_file(tensors, checkpoint / "model.safetensors")  # an earlier version's had no names
    record = complete(finetuning(place / "data", checkpoint), place / "tuned", progress=False)
    assert record.before.clean.accuracy == before["evaluation"]["clean"]["accuracy"]
    assert record.evaluation.clean.accuracy > 0.9
    assert record.data.classes == ORDER
    assert class_names(place / "tuned" / "model.safetensors") == ORDER


def test_finetune_refuses_an_unknown_class_and_leaves_nothing_behind(place: Path) -> None:
    rename(place, "red", "reed")
    for checkpoint in (place / "run", place / "run" / "model.safetensors"):
        with pytest.raises(ValueError, match=r"Found `classes = 'reed' \(nearest: red, green\)`"):
            complete(finetuning(place / "data", checkpoint), place / "tuned", progress=False)
    assert not (place / "tuned").exists()


def test_labels_that_are_indices_alone_are_refused_where_the_order_differs(place: Path) -> None:
    (place / "corrupted").mkdir()
    np.save(place / "corrupted" / "labels.npy", np.zeros(30, dtype=np.uint8))
    words = [f"evaluation.corrupted={place / 'corrupted'}", "evaluation.corruptions=['fog']"]
    with pytest.raises(ValueError, match=r"`evaluation.corrupted` should be a tree .*whose labels.npy has indices"):
        reevaluate(place / "run", overrides=words, progress=False)


SEEN = "images were cut out of the training images, and the checkpoint may have been trained on them"


@pytest.mark.slow
def test_finetune_warns_of_images_that_a_foreign_checkpoint_may_have_seen(place: Path) -> None:
    shutil.rmtree(place / "data" / "val")
    with pytest.warns(UserWarning, match=f"The validation {SEEN}"):
        complete(finetuning(place / "data", place / "run" / "model.safetensors"), place / "one", progress=False)
    with pytest.warns(UserWarning, match=f"The validation {SEEN}"):  # a run, but one that had another folder
        complete(finetuning(place / "data", place / "run"), place / "two", progress=False)
    with pytest.warns(UserWarning, match=f"The validation and test {SEEN}"):
        complete(finetuning(place / "data" / "train", place / "run"), place / "three", progress=False)
    point_to(place)  # a run that held out the same images: no warning, which would be an error
    complete(finetuning(place / "data", place / "run"), place / "four", progress=False)
    with pytest.warns(UserWarning, match=f"The validation {SEEN}"):  # fine-tuned from a foreign one
        complete(finetuning(place / "data", place / "one"), place / "five", progress=False)


def test_finetune_tells_what_its_images_become(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    complete(finetuning(place / "data", place / "run" / "model.safetensors"), place / "tuned")
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("fgr  files become 16 × 16 (data.fit=crop); input 16 × 16, mean (0.485, 0.456, 0.406), ")
    assert first.endswith("std (0.229, 0.224, 0.225)")
