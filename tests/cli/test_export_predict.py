"""One trained model as run, checkpoint, ONNX and .pt2 file: exported, predicted with and audited by the commands."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet
import pytest
import safetensors.torch
import torch
from commands import done, invoke
from PIL import Image
from torch import nn

from shiftcal import calibrators, metrics, models
from shiftcal.auditing.audit import PredictionSets, audit_predictions
from shiftcal.auditing.measure import Fitted
from shiftcal.calibrators.store import read_metadata
from shiftcal.data import load
from shiftcal.evaluation import Predictions
from shiftcal.inference.calibrate import write_calibrator
from shiftcal.records.audit import read_audit

TINY = ["data.train=320", "data.validation=80", "data.test=40", "train.epochs=2", "train.batch_size=32"]
TINY += ["evaluation.corruptions=[]", "method=ce"]
NORMALISED = ["--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a calibrator that changes much, and folders of images: by class, and in no order."""
    root = tmp_path_factory.mktemp("place")
    done("train", "demo", *(word for item in TINY for word in ("--set", item)), "--out", root / "run")
    dataset = load("shapes", train=8, validation=8, test=120)
    for place, (image, target) in enumerate(zip(dataset.test.images, dataset.test.targets, strict=True)):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        folder = root / "by-class" / dataset.classes[int(target)]
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{place:03d}.png")
        mirrored = root / "mirrored" / folder.name  # images like these, to fit on
        mirrored.mkdir(parents=True, exist_ok=True)
        picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(mirrored / f"{place:03d}.png")
        if place < 24:
            folder = [root / "loose", root / "loose" / "more", root / "loose" / "more" / "deep"][place % 3]
            folder.mkdir(parents=True, exist_ok=True)
            picture.save(folder / f"{place:03d}.png")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(600, 8, generator=generator)
    targets = torch.multinomial((3 * logits).softmax(-1), 1, generator=generator).squeeze(1)
    vector = calibrators.VectorScaling().fit(logits, targets)
    calibrators.save(root / "vector.safetensors", vector, {"classes": list(dataset.classes)})
    binning = calibrators.HistogramBinning().fit(logits, targets)
    calibrators.save(root / "histogram.safetensors", binning, {"classes": list(dataset.classes)})
    return root


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def probabilities(table: list[dict[str, str]]) -> np.ndarray:
    return np.array([[float(row[f"probabilities_{k}"]) for k in range(8)] for row in table])


def by_hand(place: Path, files: list[Path], calibrator: nn.Module | None) -> torch.Tensor:
    model = models.build("small", 8).eval()
    models.load_weights(place / "run" / "model.safetensors", model)
    images = torch.stack([torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1) for file in files])
    with torch.no_grad():
        logits = model((images.float() / 255 - 0.5) / 0.25)
        return logits if calibrator is None else calibrator(logits)


def test_a_run_predicts_any_folder_with_calibrated_confidence(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    command = ["predict", place / "run", place / "loose", "--calibrator", place / "vector.safetensors", "--all"]
    stdout = done(*command, "--out", out, "--batch-size", 7)
    assert f"{out}: 24 images. Confidence is calibrated by VectorScaling." in stdout
    assert "they stay as they are, 32 × 32 (--size N)" in stdout
    table = rows(out)
    assert list(table[0]) == ["file", "label", "confidence", *(f"probabilities_{k}" for k in range(8))]
    files = [place / "loose" / row["file"] for row in table]
    assert [row["file"] for row in table] == [f.relative_to(place / "loose").as_posix() for f in sorted(files)]
    assert len({row["file"] for row in table}) == 24
    assert table[-1]["file"].startswith("more/deep/"), "in all depths"
    expected = by_hand(place, files, calibrators.load(place / "vector.safetensors")).softmax(-1)
    np.testing.assert_allclose(probabilities(table), expected.numpy(), atol=1e-5)
    plain = by_hand(place, files, None).softmax(-1)
    assert float((expected - plain).abs().max()) > 0.1, "the calibrator does something"
    names = load("shapes", train=8, validation=8, test=8).classes
    assert [row["label"] for row in table] == [names[k] for k in expected.argmax(1)]
    np.testing.assert_allclose([float(row["confidence"]) for row in table], expected.amax(1).numpy(), atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]

    done(*command[:-1], "--out", tmp_path / "p.parquet", "--batch-size", 7)
    stored = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert stored.column_names == ["file", "label", "confidence"]
    assert stored["file"].to_pylist() == [row["file"] for row in table]
    np.testing.assert_allclose(stored["confidence"].to_numpy(), expected.amax(1).numpy(), atol=1e-5)


def exported(place: Path, suffix: str, calibrator: str = "vector") -> Path:
    path = place / f"{calibrator}{suffix}"
    if not path.exists():
        file = place / "vector.safetensors" if calibrator == "vector" else "none"
        stdout = done("export", place / "run", "--calibrator", file, "--to", path)
        assert "on 40 test images of the run its probabilities differ from PyTorch's by" in stdout
    return path


def forms(place: Path) -> dict[str, list[str | Path]]:
    """The same model in four forms, with what each has to be told."""
    return {
        "run": [place / "run"],
        "checkpoint": [place / "run" / "model.safetensors", "--model", "small", *NORMALISED],
        "onnx": [exported(place, ".onnx", "none")],
        "pt2": [exported(place, ".pt2", "none"), "--trust"],
    }


@pytest.mark.slow
def test_all_forms_of_a_model_predict_the_same(place: Path, tmp_path: Path) -> None:
    found = {}
    for name, (model, *options) in forms(place).items():
        for kind in ("plain", "histogram", "vector"):
            more = [] if kind == "plain" else ["--calibrator", place / f"{kind}.safetensors"]
            command = ["predict", model, place / "loose", *options, *more, "--all", "--out", tmp_path / "p.csv"]
            if kind == "vector" and name in ("onnx", "pt2"):  # they give probabilities, whose logarithms are no logits
                code, _, stderr = invoke(*command)
                assert (code, "VectorScaling fitted on logits" in stderr) == (2, True)
                continue
            done(*command)
            found[name, kind] = rows(tmp_path / "p.csv")
    for suffix in (".onnx", ".pt2"):
        more = ["--trust"] if suffix == ".pt2" else []
        done("predict", exported(place, suffix), place / "loose", *more, "--all", "--out", tmp_path / "p.csv")
        found[f"calibrated {suffix}", "vector"] = rows(tmp_path / "p.csv")
    for (_, kind), table in found.items():
        reference = found["run", kind]
        assert [row["label"] for row in table] == [row["label"] for row in reference]
        np.testing.assert_allclose(probabilities(table), probabilities(reference), atol=1e-4)
    for kind in ("histogram", "vector"):
        assert np.abs(probabilities(found["run", "plain"]) - probabilities(found["run", kind])).max() > 0.1


@pytest.mark.slow
def test_all_forms_of_a_model_have_the_same_audit(place: Path, tmp_path: Path) -> None:
    records = {}
    for name, (model, *options) in forms(place).items():
        words = ["audit", model, *options, "--data", place / "by-class", "--corruptions", "none"]
        done(*words, "--out", tmp_path / name)
        records[name] = read_audit(tmp_path / name)
    reference = records["run"]
    assert reference.clean.n == 120
    for record in records.values():
        assert record.data.classes == reference.data.classes
        assert record.clean.ece == pytest.approx(reference.clean.ece, abs=1e-3)
        assert record.clean.nll == pytest.approx(reference.clean.nll, abs=1e-3)
        assert record.clean.accuracy == reference.clean.accuracy
    done(
        "audit",
        exported(place, ".onnx"),
        "--data",
        place / "by-class",
        "--corruptions",
        "none",
        "--out",
        tmp_path / "c",
    )
    assert abs(read_audit(tmp_path / "c").clean.ece - reference.clean.ece) > 0.01, "this one is calibrated"


@pytest.mark.slow
def test_an_onnx_export_says_what_it_is_and_is_not_calibrated_twice(place: Path, tmp_path: Path) -> None:
    path = exported(place, ".onnx")
    model = onnx.load(path)
    assert [output.name for output in model.graph.output] == ["probabilities"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    stored = json.loads({entry.key: entry.value for entry in model.metadata_props}["shiftcal"])
    assert stored == {
        "outputs": "probabilities",
        "classes": list(load("shapes", train=8, validation=8, test=8).classes),
        "preprocessing": {"size": 32, "mean": [0.5] * 3, "std": [0.25] * 3},
        "calibrator": "VectorScaling",
    }
    stdout = done("predict", path, place / "loose", "--out", tmp_path / "p.csv")
    assert "Confidence is calibrated by VectorScaling." in stdout
    command = ["predict", path, place / "loose", "--calibrator", place / "vector.safetensors"]
    code, _, stderr = invoke(*command, "--out", tmp_path / "twice.csv")
    assert (code, stderr.count("\n")) == (2, 1)
    assert "calibrated already, by VectorScaling" in stderr
    assert not (tmp_path / "twice.csv").exists()
    code, _, stderr = invoke("export", path, "--calibrator", "none", "--to", tmp_path / "again.onnx")
    assert (code, "exported already" in stderr) == (2, True)


def test_unreadable_images_are_named_counted_and_left_out(place: Path, tmp_path: Path) -> None:
    picture = next((place / "loose").glob("*.png"))
    for number in range(101):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / f"{number:03d}.png").write_bytes(picture.read_bytes())
    (tmp_path / "images" / ".hidden.png").write_bytes(b"none")
    (tmp_path / "images" / "notes.txt").write_text("no image")
    (tmp_path / "images" / "050.png").write_bytes(b"damaged")
    out = tmp_path / "p.csv"
    with pytest.warns(UserWarning, match=r"could not be read and is left out: .*050\.png"):
        stdout = done("predict", place / "run", tmp_path / "images", "--out", out, "--batch-size", 30)
    assert "100 images; 1 could not be read and have no row." in stdout
    assert [row["file"] for row in rows(out)] == [f"{n:03d}.png" for n in range(101) if n != 50]
    before = out.read_bytes()
    (tmp_path / "images" / "099.png").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="left out"):
        code, _, stderr = invoke("predict", place / "run", tmp_path / "images", "--out", out, "--batch-size", 30)
    assert (code, stderr.count("\n")) == (2, 1)
    assert "2 unreadable of 101" in stderr
    assert out.read_bytes() == before, "an earlier table stays"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "p.csv"]


def test_labels_are_indices_where_names_are_unknown(place: Path, tmp_path: Path) -> None:
    state = models.read_weights(place / "run" / "model.safetensors")
    torch.save(state, tmp_path / "plain.pt")
    command = ["predict", tmp_path / "plain.pt", place / "loose", "--model", "small"]
    done(*command, *NORMALISED, "--out", tmp_path / "p.csv")
    done("predict", place / "run", place / "loose", "--out", tmp_path / "named.csv")
    names = load("shapes", train=8, validation=8, test=8).classes
    pairs = zip(rows(tmp_path / "p.csv"), rows(tmp_path / "named.csv"), strict=True)
    assert all(names[int(one["label"])] == other["label"] for one, other in pairs)
    code, _, stderr = invoke(*command, "--out", tmp_path / "q.csv")
    assert (code, "a wrong normalisation moves the result silently" in stderr) == (2, True)


def test_columns_are_those_of_the_calibrator(place: Path, tmp_path: Path) -> None:
    """Fitted on fewer classes in another order, it is applied to these: the softmax is over them alone."""
    names = load("shapes", train=8, validation=8, test=8).classes
    chosen = [5, 0, 3]
    logits = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    vector = calibrators.VectorScaling().fit(logits, (logits + torch.randn(300, 3)).argmax(1))
    file = tmp_path / "c.safetensors"
    calibrators.save(file, vector, {"classes": [names[k] for k in chosen]})
    command = ["predict", place / "run", place / "loose", "--calibrator", file, "--all", "--out", tmp_path / "p.csv"]
    assert "the softmax is over the 3 of 8 classes that the calibrator knows" in done(*command)
    table = rows(tmp_path / "p.csv")
    files = [place / "loose" / row["file"] for row in table]
    expected = vector(by_hand(place, files, None)[:, chosen]).softmax(-1)
    np.testing.assert_allclose(
        [[float(row[f"probabilities_{k}"]) for k in range(3)] for row in table], expected.numpy(), atol=1e-5
    )
    assert {row["label"] for row in table} <= {names[k] for k in chosen}
    calibrators.save(file, vector, {})
    code, _, stderr = invoke(*command)
    assert (code, "of 3 columns, as fitted" in stderr) == (2, True)


def wrong_uses(place: Path, tmp_path: Path) -> dict[str, list[Any]]:
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    for size in (20, 30):
        Image.new("RGB", (size, size)).save(tmp_path / "mixed" / f"{size}.png")
    run, loose, csv_file = place / "run", place / "loose", tmp_path / "p.csv"
    export = ["export", run, "--calibrator"]
    return {
        "a file that ends in .csv or .parquet": ["predict", run, loose, "--out", tmp_path / "p.txt"],
        "a file in a folder that exists": ["predict", run, loose, "--out", tmp_path / "no" / "p.csv"],
        "without images": ["predict", run, tmp_path / "empty", "--out", csv_file],
        "`folder` should be a folder of images": ["predict", run, tmp_path / "none", "--out", csv_file],
        "of one size (--size N brings them to one)": ["predict", run, tmp_path / "mixed", "--out", csv_file],
        "a calibrator's file": ["predict", run, loose, "--calibrator", loose / "000.png", "--out", csv_file],
        "an integer of at least 1": ["predict", run, loose, "--batch-size", "0", "--out", csv_file],
        "a file that ends in .onnx or .pt2": [*export, "none", "--to", tmp_path / "m.pt"],
        "shiftcal audit … --calibrate": [*export, tmp_path / "none", "--to", tmp_path / "m.onnx"],
        "a run's directory, a checkpoint": ["export", "nothing", "--calibrator", "none", "--to", tmp_path / "m.onnx"],
    }


def test_wrong_uses_are_one_line_each(place: Path, tmp_path: Path) -> None:
    before = None
    for words, command in wrong_uses(place, tmp_path).items():
        before = before or sorted(tmp_path.iterdir())
        code, _, stderr = invoke(*command)
        assert (code, stderr.count("\n")) == (2, 1), (words, stderr)
        assert words in stderr
    assert sorted(tmp_path.iterdir()) == before, "nothing is written"


def test_sizes_differ_where_a_size_is_given(place: Path, tmp_path: Path) -> None:
    for size in (20, 90):
        Image.new("RGB", (size, 40), (size, 9, 9)).save(tmp_path / f"{size}.png")
    done("predict", place / "run", tmp_path, "--size", "32", "--out", tmp_path / "p.csv")
    assert [row["file"] for row in rows(tmp_path / "p.csv")] == ["20.png", "90.png"]


@pytest.mark.slow
def test_exports_of_checkpoints_without_data(place: Path, tmp_path: Path) -> None:
    """In processes of their own, where nothing but our lines may be printed."""

    def shiftcal(*words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "shiftcal", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    checkpoint = [
        "export",
        place / "run" / "model.safetensors",
        "--model",
        "small",
        *NORMALISED,
        "--calibrator",
        "none",
    ]
    answer = shiftcal(*checkpoint, "--to", tmp_path / "m.onnx", "--size", "32")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "compared on random images: no images are known (--data FOLDER)" in answer.stdout
    answer = shiftcal(*checkpoint, "--to", tmp_path / "m.pt2", "--data", place / "loose")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert f"on 24 images of {place / 'loose'} its probabilities differ" in answer.stdout
    answer = shiftcal(*checkpoint, "--to", tmp_path / "n.onnx")
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "--size N, or --data FOLDER" in answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_model_of_timms_is_exported_with_its_preprocessing(suffix: str, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path / "weights.pt")
    (tmp_path / "photos").mkdir()
    rng = np.random.default_rng(0)
    for number in range(4):
        array = rng.integers(0, 256, (6, 8 + number, 3), dtype=np.uint8)
        Image.fromarray(array).resize((230 + number, 200)).save(tmp_path / "photos" / f"{number}.png")
    model = ["timm/resnet10t", "--weights", tmp_path / "weights.pt"]
    stdout = done(
        "export", *model, "--calibrator", "none", "--to", tmp_path / f"m{suffix}", "--data", tmp_path / "photos"
    )
    assert "on 4 images of" in stdout
    more = ["--trust"] if suffix == ".pt2" else []
    done("predict", tmp_path / f"m{suffix}", tmp_path / "photos", *more, "--out", tmp_path / "a.csv")
    done("predict", model[0], tmp_path / "photos", *model[1:], "--out", tmp_path / "b.csv")
    for one, other in zip(rows(tmp_path / "a.csv"), rows(tmp_path / "b.csv"), strict=True):
        assert (one["file"], one["label"]) == (other["file"], other["label"])
        assert float(one["confidence"]) == pytest.approx(float(other["confidence"]), abs=1e-4)
        assert one["label"].startswith("n0"), "a name of ImageNet's"


def audited(place: Path, out: Path, *more: str | Path) -> tuple[int, str, str]:
    folder = place / "by-class"
    words = ["audit", place / "run", "--data", folder, "--corruptions", "none", "--out", out]
    return invoke(*words, *(more or ("--validation", place / "mirrored", "--calibrate", "vector")))


@pytest.mark.slow
def test_what_an_audit_promises_of_a_calibrator_is_what_predictions_have(place: Path, tmp_path: Path) -> None:
    code, stdout, stderr = audited(place, tmp_path / "a")
    assert (code, stderr) == (0, "")
    file = tmp_path / "a" / "calibrator.safetensors"
    assert f"Calibrator: {file} (vector, fitted on validation images)" in stdout
    record = read_audit(tmp_path / "a")
    described = read_metadata(file)
    assert (described["kind"], described["name"], described["outputs"]) == ("VectorScaling", "vector", "logits")
    assert described["classes"] == list(record.data.classes) == sorted(record.data.classes)
    assert described["model"]["sha256"] == record.model.sha256
    command = ["predict", place / "run", place / "by-class", "--calibrator", file, "--all", "--out", tmp_path / "p.csv"]
    assert "another model" not in done(*command)
    table = rows(tmp_path / "p.csv")
    targets = torch.tensor([record.data.classes.index(row["file"].partition("/")[0]) for row in table])
    given = torch.from_numpy(probabilities(table))
    given = given / given.sum(1, keepdim=True)
    assert metrics.ece(given, targets) == pytest.approx(record.calibrators["vector"].clean.ece, abs=1e-3)
    assert metrics.nll(given, targets) == pytest.approx(record.calibrators["vector"].clean.nll, abs=1e-3)
    assert abs(record.calibrators["vector"].clean.nll - record.clean.nll) > 0.05, "it changes something"

    model = models.build("small", 8)
    names = {"classes": json.dumps(list(record.data.classes))}
    safetensors.torch.save_file(model.state_dict(), tmp_path / "other.safetensors", names)
    words = ["predict", tmp_path / "other.safetensors", "--model", "small", *NORMALISED, *command[2:]]
    assert "the calibrator was fitted on another model's file, run (ce)" in done(*words)

    before = file.read_bytes()
    file.unlink()
    code, stdout, stderr = audited(place, tmp_path / "a")
    assert (code, stderr) == (0, "")
    assert "This audit was finished earlier" in stdout
    assert file.read_bytes() == before, "fitted again, on the validation images alone, it is the same"
    code, stdout, _ = audited(place, tmp_path / "a", "--validation", place / "mirrored", "--calibrate", "best")
    assert (code, f"({record.mended_by}, fitted on" in stdout) == (0, True)
    assert read_metadata(file)["name"] == record.mended_by


def test_where_no_calibrator_can_be_written_the_audit_is_and_the_reason_is_said(place: Path, tmp_path: Path) -> None:
    for name in ("best", "temperature"):
        code, _, stderr = audited(place, tmp_path / name, "--calibrate", name)
        assert (code, stderr.count("\n")) == (2, 1)
        assert "no validation data were given" in stderr
        written = sorted(file.name for file in (tmp_path / name).iterdir())
        assert written == ["about.json", "audit.html", "audit.json", "gallery.json"]
    code, _, stderr = audited(place, tmp_path / "none", "--calibrate", "vektor")
    assert (code, "Did you mean 'vector'?" in stderr) == (2, True)
    assert not (tmp_path / "none").exists(), "said before the audit"


def test_only_what_mends_and_fits_the_audit_is_written(tmp_path: Path) -> None:
    logits, targets = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    fitted: list[Fitted] = []
    sets = PredictionSets(Predictions(logits, targets), Predictions(logits.flip(0), targets))
    record = audit_predictions(sets, on_fitted=fitted.append)
    with pytest.raises(ValueError, match="best: none of the audit's lowers the ECE"):
        write_calibrator(tmp_path, record.model_copy(update={"mended_by": None}), "best", fitted[0])
    tried = record.calibrators["temperature"]
    other = record.calibrators | {"temperature": tried.model_copy(update={"temperature": tried.temperature + 0.3})}
    with pytest.raises(ValueError, match="`validation` should be the images of the audit"):
        write_calibrator(tmp_path, record.model_copy(update={"calibrators": other}), "temperature", fitted[0])
    assert list(tmp_path.iterdir()) == []
    name, file = write_calibrator(tmp_path, record, "Temperature", fitted[0])
    assert (name, calibrators.load(file).temperature) == ("temperature", tried.temperature)


def test_a_calibrator_of_a_table_knows_what_the_table_held(place: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(300, 8, generator=generator).softmax(-1)
    targets = torch.multinomial(p.square(), 1, generator=generator).squeeze(1)
    split = np.where(np.arange(300) < 200, "validation", "test")
    np.savez(tmp_path / "t.npz", target=targets.numpy(), probabilities=p.numpy(), split=split)
    words = ["audit", "--predictions", tmp_path / "t.npz", "--calibrate", "vector", "--out", tmp_path / "a"]
    done(*words)
    file = tmp_path / "a" / "calibrator.safetensors"
    before = file.read_bytes()
    assert read_metadata(file)["outputs"] == "probabilities"
    file.unlink()
    done(*words)
    assert file.read_bytes() == before
    code, _, stderr = invoke(
        "predict", place / "run", place / "loose", "--calibrator", file, "--out", tmp_path / "p.csv"
    )
    assert (code, "VectorScaling fitted on probabilities" in stderr) == (2, True)


def test_a_finished_audit_of_a_table_with_names_is_calibrated(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\ncow\ndog\n")
    rng = np.random.default_rng(0)
    target, split = np.array(["cat", "cow", "dog"])[rng.integers(3, size=300)], np.arange(300) < 200
    logits, split = rng.normal(size=(300, 3)), np.where(split, "validation", "test")
    np.savez(tmp_path / "t.npz", target=target, logits=logits, split=split)
    words = ["audit", "--predictions", tmp_path / "t.npz", "--classes", tmp_path / "names.txt", "--out", tmp_path / "a"]
    done(*words)
    done(*words, "--calibrate", "vector")
    assert (tmp_path / "a" / "calibrator.safetensors").is_file()


def test_a_model_of_one_logit_is_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 1))"
    (tmp_path / "single.py").write_text(f"import torch\n\n\ndef make(classes):\n    return {made}\n")
    monkeypatch.chdir(tmp_path)
    torch.save(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 1)).state_dict(), tmp_path / "one.pt")
    model = [tmp_path / "one.pt", "--model", "single:make", "--size", "32", "--mean", ".5,.5,.5", "--std", ".5,.5,.5"]
    for words in (
        ["predict", *model[:1], place / "loose", *model[1:], "--out", tmp_path / "p.csv"],
        ["export", *model, "--calibrator", "none", "--to", tmp_path / "one.pt2"],
        ["audit", *model, "--data", place / "by-class", "--out", tmp_path / "a"],
    ):
        code, _, stderr = invoke(*words)
        assert (code, "torch.stack([0 * z, z], -1)" in stderr) == (2, True), stderr


def test_a_disagreeing_export_fails_with_code_1(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shiftcal.auditing import export

    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    code, _, stderr = invoke("export", place / "run", "--calibrator", "none", "--to", tmp_path / "m.pt2")
    assert (code, stderr.count("\n")) == (1, 1)
    assert "m.pt2 was not written: it differs from PyTorch by" in stderr
    assert list(tmp_path.iterdir()) == []
