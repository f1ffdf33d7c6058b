"""Shared folders: the card says what was measured, and the folder predicts what the run predicts."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from commands import done, invoke
from made_audits import made
from made_records import record as made_record
from PIL import Image

import shiftcal
from shiftcal import calibrators
from shiftcal.data import load
from shiftcal.records import DataSeen, read_record
from shiftcal.records.audit import write_audit
from shiftcal.report.card import Told, card_of_audit, card_of_run, results_of

TINY = ["data.train=160", "data.validation=40", "data.test=40", "train.epochs=1", "train.batch_size=32", "method=ce"]
TINY += ['evaluation.corruptions=["contrast"]']
HOSTILE = 'a" : [b]\n---\n<script>alert(1)</script> | `x` \x1b[2J \ufffe 😀 ![i](http://x)\\'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a calibrator that changes much, images, and the folder to be shared."""
    root = tmp_path_factory.mktemp("place")
    done("train", "demo", *(word for item in TINY for word in ("--set", item)), "--out", root / "run")
    dataset = load("shapes", train=8, validation=8, test=24)
    (root / "photos").mkdir()
    for number, image in enumerate(dataset.test.images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(root / "photos" / f"{number:02d}.png")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(400, 8, generator=generator)
    targets = torch.multinomial((3 * logits).softmax(-1), 1, generator=generator).squeeze(1)
    vector = calibrators.VectorScaling().fit(logits, targets)
    calibrators.save(root / "vector.safetensors", vector, {"classes": list(dataset.classes)})
    words = ["--calibrator", root / "vector.safetensors", "--license", "mit", "--out", root / "share"]
    assert "Card: " in done("card", root / "run", *words)
    return root


def front_matter(text: str) -> dict[str, Any]:
    start, matter, _ = text.split("---\n", 2)
    assert start == ""
    return yaml.safe_load(matter)


def test_the_folder_predicts_what_the_command_predicts(place: Path, tmp_path: Path) -> None:
    words = ["--calibrator", place / "vector.safetensors", "--all", "--out", tmp_path / "p.csv"]
    done("predict", place / "run", place / "photos", *words)
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = np.array([[float(row[f"probabilities_{k}"]) for k in range(8)] for row in rows])
    model = shiftcal.load(place / "share")
    assert (model.calibrator, model.classes) == ("VectorScaling", load("shapes", train=8, validation=8, test=8).classes)
    files = sorted((place / "photos").iterdir())
    stored = torch.stack([torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) for file in files])
    for images in (place / "photos", str(place / "photos"), files, stored, stored.numpy()):
        found = model.predict(images, batch_size=7)
        assert found.shape == (24, 8)
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    plain = shiftcal.load(place / "run")
    assert plain.calibrator is None
    assert float((plain.predict(stored) - found).abs().max()) > 0.05, "the calibrator does something"
    again = shiftcal.load(place / "run", calibrator=place / "vector.safetensors").predict(stored)
    torch.testing.assert_close(again, found)
    out = done("predict", place / "share", place / "photos", "--out", tmp_path / "again.csv")
    assert "calibrated by VectorScaling" in out, "the command takes the folder's own calibrator too"


def test_images_in_memory_become_what_files_become(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(place / "run", folder)
    for name in ("config.json", "record.json"):
        content = json.loads((folder / name).read_text())
        (content if name == "config.json" else content["config"])["data"] |= {"size": 32, "fit": "crop"}
        (folder / name).write_text(json.dumps(content))
    image = torch.randint(0, 256, (50, 61, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    Image.fromarray(image.numpy()).save(tmp_path / "large.png")
    model = shiftcal.load(folder)
    from_file = model.predict([tmp_path / "large.png"])
    torch.testing.assert_close(model.predict(image.permute(2, 0, 1)[None]), from_file)


def test_what_cannot_be_predicted_is_one_clear_error(place: Path, tmp_path: Path) -> None:
    model = shiftcal.load(place / "share")
    for images in (torch.rand(2, 3, 32, 32), torch.zeros(3, 32, 32, dtype=torch.uint8), [], [1, 2], 3):
        with pytest.raises(ValueError, match=r"`images` should be uint8 \[N, 3, H, W\], a folder of images, or a list"):
            model.predict(images)
    shutil.copytree(place / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "03.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"03\.png"):
        model.predict(tmp_path / "photos")
    with pytest.raises(ValueError, match="`MODEL` should be"):
        shiftcal.load(tmp_path / "absent")


def test_the_card_says_what_was_measured(place: Path) -> None:
    text = (place / "share" / "README.md").read_text(encoding="utf-8")
    matter, own = front_matter(text), read_record(place / "run" / "record.json").evaluation
    assert (matter["library_name"], matter["license"], matter["pipeline_tag"]) == (
        "shiftcal",
        "mit",
        "image-classification",
    )
    clean, shifted = matter["model-index"][0]["results"]
    assert [m["type"] for m in clean["metrics"]] == ["accuracy", "ece"]
    found = [m["value"] for m in (*clean["metrics"], *shifted["metrics"])]
    assert found == pytest.approx([own.clean.accuracy, own.clean.ece, own.shifted.accuracy, own.shifted.ece], abs=1e-6)
    assert "mean of 10 shifted test sets, 2 shifts" in shifted["dataset"]["name"]
    for words in ("Method ce, recipe demo, seed 0", "## Limits", "without it", '"epochs": 1', "disc"):
        assert words in text
    entries = yaml.safe_load((place / "share" / ".eval_results" / "shiftcal.yaml").read_text(encoding="utf-8"))
    assert [e["dataset"]["task_id"] for e in entries] == [
        "clean_accuracy",
        "clean_ece",
        "shifted_accuracy",
        "shifted_ece",
    ]
    assert [e["value"] for e in entries] == found
    hub = pytest.importorskip("huggingface_hub")
    results = hub.ModelCard.load(place / "share" / "README.md").data.eval_results
    assert [(r.task_type, r.metric_type) for r in results][:2] == [
        ("image-classification", "accuracy"),
        ("image-classification", "ece"),
    ]
    assert [entry.value for entry in hub.parse_eval_result_entries(entries)] == found


def test_hostile_text_stays_text() -> None:
    data = DataSeen(name=HOSTILE, classes=(HOSTILE, "b"), counts={})
    run = made_record("ce", 0, 0.1, recipe=HOSTILE, data=data)
    run = run.model_copy(update={"config": run.config | {"note": "```\n# not a title"}, "method": HOSTILE})
    for text in (
        card_of_run(run, Told(HOSTILE, license=HOSTILE)),
        card_of_audit(made(data={"name": HOSTILE, "classes": [HOSTILE, "b"]}, verdict=[HOSTILE]), Told(HOSTILE)),
    ):
        matter = front_matter(text)
        name = matter["model-index"][0]["name"]
        assert name.startswith('a" : [b] --- <script>')
        assert name.endswith("\ufffe 😀 ![i](http://x)\\")
        assert text.count("\n---\n") == 1, "the front matter ends once"
        body = text.split("---\n", 2)[2]
        assert "\x1b" not in text
        assert "<script>" not in body.replace("\\<script\\>", "")
        assert not re.search(r"(?<!\\)\]\(http", body)
        assert body.count("\n# ") == 1
        assert body.count("```") % 2 == 0
    entries = yaml.safe_load(results_of(run, Told("x")))
    assert entries[0]["dataset"]["id"].startswith('a" : [b] ---')


def test_paths_of_this_machine_are_left_out(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "run", run)
    for name in ("config.json", "record.json"):
        content = json.loads((run / name).read_text())
        tree = content if name == "config.json" else content["config"]
        tree["data"]["root"], tree["train"]["weights"] = "/home/somebody/photos", "/home/somebody/start.safetensors"
        tree["finetuned_from"] = "/home/somebody/earlier"
        (run / name).write_text(json.dumps(content))
    done("card", run, "--out", tmp_path / "share")
    for file in (tmp_path / "share").rglob("*"):
        assert file.is_dir() or b"somebody" not in file.read_bytes(), file
    assert shiftcal.load(tmp_path / "share").predict(place / "photos").shape == (24, 8)


def test_a_foreign_folder_is_left_alone(place: Path, tmp_path: Path) -> None:
    for name, content in (("notes.txt", "mine"), ("README.md", "# Mine")):
        out = tmp_path / name.partition(".")[0]
        out.mkdir()
        (out / name).write_text(content)
        code, _, stderr = invoke("card", place / "run", "--out", out)
        assert (code, stderr.count("\n")) == (2, 1), stderr
        assert "new, empty, or a folder that `shiftcal card` wrote" in stderr
        assert [(path.name, path.read_text()) for path in out.iterdir()] == [(name, content)]
    shutil.copytree(place / "share", tmp_path / "again")
    (tmp_path / "again" / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    done("card", place / "run", "--out", tmp_path / "again", "--name", "renamed")
    assert "# renamed" in (tmp_path / "again" / "README.md").read_text()
    assert invoke("card", tmp_path / "again", "--out", tmp_path / "again")[0] == 2
    assert invoke("card", place / "run", "--out", place / "run")[0] == 2
    assert (place / "run" / "README.md").exists() is False
    shutil.rmtree(tmp_path / "again" / ".eval_results")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "again" / ".eval_results").symlink_to(tmp_path / "elsewhere")
    assert invoke("card", place / "run", "--out", tmp_path / "again")[0] == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_an_older_calibrator_does_not_stay_behind(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "share", tmp_path / "share")
    done("card", place / "run", "--out", tmp_path / "share")
    assert shiftcal.load(tmp_path / "share").calibrator is None, "the card says nothing of one"


def test_calibrators_of_other_classes_and_unfinished_runs_are_refused(place: Path, tmp_path: Path) -> None:
    logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    other = calibrators.TemperatureScaling().fit(logits, logits.argmax(1))
    for names in ({}, {"classes": ["x", "y", "z"]}):
        calibrators.save(tmp_path / "other.safetensors", other, names)
        code, _, stderr = invoke(
            "card", place / "run", "--calibrator", tmp_path / "other.safetensors", "--out", tmp_path / "share"
        )
        assert (code, "one for the model's 8 classes" in stderr) == (2, True), stderr
    assert not (tmp_path / "share").exists()
    assert invoke("card", tmp_path, "--out", tmp_path / "share")[0] == 2


def test_the_card_of_an_audit(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    write_audit(tmp_path / "audit" / "audit.json", made())
    done("card", tmp_path / "audit", "--out", tmp_path / "share", "--dataset", "me/photos")
    text = (tmp_path / "share" / "README.md").read_text(encoding="utf-8")
    assert "Right 90.0 % of the time, says 95.0 %." in text
    results = front_matter(text)["model-index"][0]["results"]
    assert [r["dataset"]["type"] for r in results] == ["me/photos", "me/photos"]
    names = sorted(path.name for path in (tmp_path / "share").iterdir())
    assert names == [".eval_results", "README.md", "audit.json"]
