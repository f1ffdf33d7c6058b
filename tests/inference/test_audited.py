import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from typer.testing import CliRunner

from shiftcal import models
from shiftcal._lock import locked
from shiftcal.auditing.audit import Images
from shiftcal.cli import app
from shiftcal.data.split import FileSplit
from shiftcal.experiments.config import load_config
from shiftcal.experiments.other_folder import measure_folder
from shiftcal.experiments.run import complete
from shiftcal.inference.audit import audit_model, prepare
from shiftcal.inference.images import digest_of, shared_images
from shiftcal.inference.open_model import open_model
from shiftcal.inference.request import Wanted
from shiftcal.models.weights import class_metadata
from shiftcal.records.audit import read_audit
from shiftcal.records.gallery import read_gallery

NAMES = ("cat", "cow", "dog")
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


def pictures(root: Path, classes: tuple[str, ...] = NAMES, each: int = 6, seed: int = 0, size: int = 16) -> Path:
    """Images whose brightness tells their class, in a folder for each class."""
    rng = np.random.default_rng(seed)
    for name in classes:
        (root / name).mkdir(parents=True)
        for k in range(each):
            level = 60 + 60 * NAMES.index(name) if name in NAMES else 20
            pixels = (level + rng.integers(-20, 20, (size, size, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{k}.png")
    return root


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "net.safetensors"
    safetensors.torch.save_file(models.build("small", 3).state_dict(), path)
    return path


@pytest.fixture
def named(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "named.safetensors"
    safetensors.torch.save_file(models.build("small", 3).state_dict(), path, class_metadata(NAMES))
    return path


def wanted(model: Path, data: Path, **more: object) -> Wanted:
    return Wanted(str(model), str(data), network="small", corruptions=(), **(HALF | more))  # type: ignore[arg-type]


def test_a_whole_folder_is_the_test_set_unless_it_has_parts(checkpoint: Path, tmp_path: Path) -> None:
    ready = prepare(wanted(checkpoint, pictures(tmp_path / "plain")), progress=False)
    assert ready.images.counts == {"test": 18}
    root = tmp_path / "parts"
    for part, each in (("train", 5), ("val", 2), ("test", 3)):
        pictures(root / part, each=each)
    ready = prepare(wanted(checkpoint, root), progress=False)
    assert ready.images.counts == {"test": 9, "validation": 6}
    ready = prepare(wanted(checkpoint, root, validation=root / "train", shifts={"other": root / "val"}), progress=False)
    assert ready.images.counts == {"test": 9, "validation": 15, "other": 6}


def test_classes_are_matched_by_name(named: Path, tmp_path: Path) -> None:
    """A folder that lacks a class, and so has another order of indices, gives the same logits for the same images."""
    pictures(tmp_path / "all")
    pictures(tmp_path / "two", ("cow", "dog"))
    whole = prepare(wanted(named, tmp_path / "all"), progress=False)
    assert whole.notes == ()
    part = prepare(wanted(named, tmp_path / "two"), progress=False)
    assert part.images.classes == ("cow", "dog")
    assert part.seen.restricted == "the softmax is over the 2 of 3 classes that the data has"
    x = part.preprocess(part.images.test.images)
    torch.testing.assert_close(part.predictor(x), whole.predictor(x)[:, [1, 2]])
    pictures(tmp_path / "strange", ("cat", "cowe", "dog"))
    with pytest.raises(ValueError, match=r"'cowe' \(nearest: cow\)"):
        prepare(wanted(named, tmp_path / "strange"), progress=False)


def test_test_images_may_lack_classes_that_others_have(named: Path, tmp_path: Path) -> None:
    root = tmp_path / "parts"
    pictures(root / "val", each=2)
    pictures(root / "test", ("cat", "dog"), each=3)
    ready = prepare(wanted(named, root), progress=False)
    assert ready.images.classes == NAMES
    assert ready.images.test.targets.tolist() == [0] * 3 + [2] * 3
    assert ready.images.validation is not None
    assert ready.images.validation.targets.tolist() == [0, 0, 1, 1, 2, 2]
    record = audit_model(wanted(named, root), tmp_path / "audit", progress=False)
    assert record.clean.n == 6
    pictures(root / "test" / "yak", ())
    pictures(root / "test", ("yak",))
    with pytest.raises(ValueError, match="'yak'"):
        prepare(wanted(named, root), progress=False)


def test_an_accuracy_of_chance_is_told(checkpoint: Path, tmp_path: Path) -> None:
    record = audit_model(wanted(checkpoint, pictures(tmp_path / "all")), tmp_path / "audit", progress=False)
    assert record.clean.accuracy < 0.5, "the network was never trained"
    assert any("hardly more than by chance: does it know other classes" in warning for warning in record.warnings)


def test_a_shift_brings_no_classes_to_a_model_that_names_none(checkpoint: Path, tmp_path: Path) -> None:
    """A slip of the pen would fill the place of the class that the test images lack, and move the others."""
    pictures(tmp_path / "test", NAMES[1:])
    pictures(tmp_path / "camera", (*NAMES[1:], NAMES[1].upper()))
    with pytest.raises(ValueError, match=f"'{NAMES[1].upper()}' .nearest: {NAMES[1]}"):
        prepare(wanted(checkpoint, tmp_path / "test", shifts={"camera": tmp_path / "camera"}), progress=False)


def test_a_shift_may_lack_classes_but_has_no_others(named: Path, tmp_path: Path) -> None:
    pictures(tmp_path / "all")
    pictures(tmp_path / "camera", ("dog",), each=4)
    ready = prepare(wanted(named, tmp_path / "all", shifts={"camera": tmp_path / "camera"}), progress=False)
    assert ready.images.shifts["camera"][0].targets.tolist() == [2] * 4
    pictures(tmp_path / "zoo", ("dog", "yak"))
    with pytest.raises(ValueError, match="'yak'"):
        prepare(wanted(named, tmp_path / "all", shifts={"zoo": tmp_path / "zoo"}), progress=False)


def test_names_that_are_not_known_are_given_or_noted(checkpoint: Path, tmp_path: Path) -> None:
    data = pictures(tmp_path / "all")
    ready = prepare(wanted(checkpoint, data), progress=False)
    assert any("does not name its classes" in note for note in ready.notes)
    (tmp_path / "names.txt").write_text("\ufeffdog\ncat\ncow\n", encoding="utf-8")  # as Windows' Notepad saves
    given = prepare(wanted(checkpoint, data, classes=tmp_path / "names.txt"), progress=False)
    x = ready.preprocess(ready.images.test.images)
    torch.testing.assert_close(given.predictor(x), ready.predictor(x)[:, [1, 2, 0]])
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    with pytest.raises(ValueError, match="weights"):  # a network of two classes does not take these weights
        prepare(wanted(checkpoint, data, classes=tmp_path / "names.txt"), progress=False)
    pictures(tmp_path / "two", ("cow", "dog"))
    with pytest.raises(ValueError, match=r"of 2 classes, as the data has \(--classes FILE"):
        prepare(wanted(checkpoint, tmp_path / "two"), progress=False)


def test_preprocessing_is_asked_for_and_recorded(checkpoint: Path, tmp_path: Path) -> None:
    data = pictures(tmp_path / "all", size=40)
    with pytest.raises(ValueError, match=r"`preprocessing` should be given \(--mean and --std\)"):
        prepare(wanted(checkpoint, data, mean=(), std=()), progress=False)
    ready = prepare(wanted(checkpoint, data, size=16, resize=20, interpolation="bicubic"), progress=False)
    assert ready.images.test.shape == (3, 16, 16)
    assert ready.shown == {
        "size": 16,
        "resize": 20,
        "interpolation": "bicubic",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25],
    }
    with Image.open(sorted((data / "cat").iterdir())[0]) as image:
        small = image.resize((20, 20), Image.Resampling.BICUBIC).crop((2, 2, 18, 18))
    assert torch.equal(ready.images.test.images[0], torch.from_numpy(np.array(small)).permute(2, 0, 1))


@pytest.mark.parametrize(("size", "constants"), [(32, "cifar"), (64, "tiny-imagenet"), (224, "imagenet")])
def test_constants_are_the_nearest(checkpoint: Path, tmp_path: Path, size: int, constants: str) -> None:
    data = pictures(tmp_path / "all", each=1, size=size)
    assert prepare(wanted(checkpoint, data), progress=False).constants == constants


def test_the_network_of_a_checkpoint_is_needed(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="`model` should be given: --model NAME"):
        open_model(str(checkpoint))
    (tmp_path / "their_code.py").write_text(
        "from shiftcal.models import build\n\ndef make(classes):\n    return build('small', classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    opened = open_model(str(checkpoint), network="their_code:make")
    assert opened.kind == "checkpoint"
    assert opened.sha256 is not None
    torch.save({"state_dict": {f"model.{k}": v for k, v in opened.model.state_dict().items()}}, tmp_path / "light.ckpt")
    again = open_model(str(tmp_path / "light.ckpt"), network="small")
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(again.model.eval()(x), opened.model.eval()(x))


def test_a_program_is_loaded_only_if_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"a trusted one \(--trust\)"):
        open_model(str(tmp_path / "m.pt2"))
    with pytest.raises(ValueError, match=r"a whole torch\.export program"):
        open_model(str(tmp_path / "m.pt2"), trust=True)


def test_a_run_is_audited_on_its_own_data(tmp_path: Path) -> None:
    sizes = ["data.train=64", "data.validation=40", "data.test=48", "train.epochs=1"]
    record = complete(load_config("demo", ["method=ce", *sizes]), tmp_path / "run", progress=False)
    answer = CliRunner().invoke(
        app, ["audit", str(tmp_path / "run"), "--corruptions", "fog", "--out", str(tmp_path / "a")]
    )
    assert answer.exit_code == 0, answer.output
    found = read_audit(tmp_path / "a")
    assert found.clean.accuracy == pytest.approx(record.evaluation.clean.accuracy)
    assert found.clean.ece == pytest.approx(record.evaluation.clean.ece, abs=1e-4)
    texture = {c.severity: c.ece for c in record.evaluation.shifts}
    assert {c.severity: c.ece for c in found.shifts if c.shift == "texture"} == pytest.approx(texture, abs=1e-4)
    assert found.calibrators["temperature"].temperature == record.evaluation.temperatures["clean"]
    assert found.calibrators["temperature (augmented)"].temperature == record.evaluation.temperatures["shift_aware"]
    assert found.model.kind == "run"
    assert "preprocessing: mean [0.5, 0.5, 0.5]" in answer.output


def oblong(root: Path, each: int, seed: int = 0) -> Path:
    """Pictures that a crop and a stretch make different squares of, in a folder for each class."""
    rng = np.random.default_rng(seed)
    for place, name in enumerate(NAMES):
        (root / name).mkdir(parents=True)
        for k in range(each):
            levels = np.linspace(0, 80 * place + 60, 28)[None, :, None] + rng.integers(0, 40, (20, 28, 3))
            Image.fromarray(levels.astype(np.uint8)).save(root / name / f"{k}.png")
    return root


TINY = ("method=ce", "data.size=16", "train.epochs=1", "train.batch_size=16", "evaluation.corruptions=[]")


@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_folders_beside_a_runs_data_become_what_its_images_are(fit: str, tmp_path: Path) -> None:
    """The run's own test and validation images, named again as folders, give the numbers that they gave."""
    root = tmp_path / "data"
    for seed, (part, each) in enumerate((("train", 12), ("val", 8), ("test", 10))):
        oblong(root / part, each, seed)
    words = [*TINY, "data.name=folder", f"data.root={root}", f"data.fit={fit}"]
    record = complete(load_config("demo", words), tmp_path / "run", progress=False)
    asked = Wanted(
        str(tmp_path / "run"), corruptions=(), validation=root / "val", shifts={"again": root / "test"}, trust=True
    )
    found = audit_model(asked, tmp_path / "audit", progress=False)
    (again,) = found.shifts
    assert (again.accuracy, again.nll, again.ece) == (found.clean.accuracy, found.clean.nll, found.clean.ece)
    assert found.clean.nll == pytest.approx(record.evaluation.clean.nll, abs=1e-4)
    assert found.calibrators["temperature"].temperature == record.evaluation.temperatures["clean"]


def test_the_defaults_of_a_runs_data_set_hold_for_other_folders(tmp_path: Path) -> None:
    """Sets with domains stretch their images: so are those of another folder, by every command."""
    for seed, domain in enumerate(("art", "photo")):
        oblong(tmp_path / "data" / domain, 20, seed)
    words = [*TINY, "data.name=pacs", f"data.root={tmp_path / 'data'}", "data.holdout=photo"]
    record = complete(load_config("demo", words), tmp_path / "run", progress=False)
    (held,) = record.evaluation.shifts
    assert open_model(str(tmp_path / "run")).known["fit"] == "stretch"
    elsewhere, _ = measure_folder(tmp_path / "run", tmp_path / "data" / "photo", progress=False)
    assert elsewhere.evaluation.clean.nll == pytest.approx(held.nll, abs=1e-6)
    asked = Wanted(str(tmp_path / "run"), str(tmp_path / "data" / "photo"), corruptions=())
    assert audit_model(asked, tmp_path / "audit", progress=False).clean.nll == pytest.approx(held.nll, abs=1e-4)


def test_an_audit_that_was_stopped_continues(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pictures(tmp_path / "all", each=10)
    asked = Wanted(str(named), str(data), network="small", corruptions=("fog",), **HALF)  # type: ignore[arg-type]
    whole = audit_model(asked, tmp_path / "whole", progress=False)
    from shiftcal.auditing import audit as module

    seen: list[int] = []

    def counted(*args: object, **kwargs: object):  # type: ignore[no-untyped-def]
        seen.append(1)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return predict(*args, **kwargs)

    predict = module.predict
    monkeypatch.setattr(module, "predict", counted)
    with pytest.raises(KeyboardInterrupt):
        audit_model(asked, tmp_path / "a", progress=False)
    seen.clear()
    seen.extend([1] * 10)  # past the interruption
    again = audit_model(asked, tmp_path / "a", progress=False)
    assert len(seen) == 10 + 3, "of six test sets three were kept"
    assert again.shifts == whole.shifts
    assert again.verdict == whole.verdict
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["about.json", "audit.json"]


def test_another_audit_is_not_taken_for_this_one(named: Path, checkpoint: Path, tmp_path: Path) -> None:
    """Other pixels under the same folder name and counts, another order of names, another network: each is refused."""
    data = pictures(tmp_path / "a" / "photos")
    audit_model(wanted(checkpoint, data), tmp_path / "out", progress=False)
    audit_model(wanted(checkpoint, data), tmp_path / "out", progress=False)
    (tmp_path / "names.txt").write_text("dog\ncat\ncow\n")
    other = pictures(tmp_path / "b" / "photos", seed=5)
    for changed in (
        wanted(checkpoint, other),
        wanted(checkpoint, data, classes=tmp_path / "names.txt"),
        wanted(named, data),
        wanted(checkpoint, data, mean=(0.4, 0.5, 0.5)),
    ):
        with pytest.raises(ValueError, match=r"which has another audit\.json"):
            audit_model(changed, tmp_path / "out", progress=False)


def test_another_version_of_a_factory_is_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code = "from torch import nn\ndef make(k):\n    return nn.Sequential(nn.Flatten(), nn.Linear(768, k))\n"
    (tmp_path / "their_factory.py").write_text(code)
    weights = {"1.weight": torch.randn(3, 768), "1.bias": torch.zeros(3)}
    safetensors.torch.save_file(weights, tmp_path / "net.safetensors")
    asked = Wanted("net.safetensors", str(pictures(tmp_path / "data")), "their_factory:make", corruptions=(), **HALF)
    audit_model(asked, tmp_path / "out", progress=False)
    audit_model(asked, tmp_path / "out", progress=False)  # is read
    (tmp_path / "their_factory.py").write_text(code + "# another version\n")
    with pytest.raises(ValueError, match=r"that of the same audit"):
        audit_model(asked, tmp_path / "out", progress=False)


def test_calibrators_are_not_fitted_on_the_test_images(named: Path, tmp_path: Path) -> None:
    data = pictures(tmp_path / "all")
    with pytest.raises(ValueError, match="`validation` should be other images than the test set's"):
        prepare(wanted(named, data, validation=data), progress=False)
    some = pictures(tmp_path / "some", seed=1)
    (some / "cat" / "0.png").write_bytes((data / "cat" / "0.png").read_bytes())
    ready = prepare(wanted(named, data, validation=some), progress=False)
    assert any(note.startswith("1 validation images are test images too") for note in ready.notes)


def test_an_audit_holds_its_directory(checkpoint: Path, tmp_path: Path) -> None:
    asked = wanted(checkpoint, pictures(tmp_path / "all"))
    with locked(tmp_path / "audit"), pytest.raises(ValueError, match="`out` should be a directory that nobody else"):
        audit_model(asked, tmp_path / "audit", progress=False)


def test_copies_on_disk_are_the_same_images(tmp_path: Path) -> None:
    files = sorted(pictures(tmp_path / "all").rglob("*.png"))
    copied = [Path(shutil.copy(file, tmp_path / f"other-{k}.png")) for k, file in enumerate(files[:3])]
    test, validation = (FileSplit(tuple(some), torch.zeros(len(some), dtype=torch.long)) for some in (files, copied))
    images = Images("x", NAMES, test, validation)
    assert shared_images(images) == 3
    copied[0].unlink()
    copied[0].symlink_to("/no/such/annex")  # is told of when it is read
    assert shared_images(images) == 2
    assert digest_of(validation) != digest_of(test)


def test_a_softmax_at_the_end_is_noticed(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "soft_code.py").write_text(
        "from torch import nn\nfrom shiftcal.models import build\n\n"
        "def make(k):\n    return nn.Sequential(build('small', k), nn.Softmax(-1))\n\n"
        "def fails(k):\n    raise RuntimeError('no such thing')\n"
    )
    inner = {f"0.{name}": tensor for name, tensor in models.read_weights(checkpoint).items()}
    safetensors.torch.save_file(inner, tmp_path / "soft.safetensors")
    monkeypatch.chdir(tmp_path)
    data = pictures(tmp_path / "all")
    soft = str(tmp_path / "soft.safetensors")
    asked = Wanted(soft, str(data), network="soft_code:make", corruptions=(), **HALF)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`outputs` should be given: --outputs probabilities"):
        prepare(asked, progress=False)
    given = prepare(dataclasses.replace(asked, outputs="probabilities"), progress=False)
    plain = prepare(wanted(checkpoint, data), progress=False)
    x = plain.preprocess(plain.images.test.images)
    torch.testing.assert_close(given.predictor(x).softmax(-1).float(), plain.predictor(x).softmax(-1))
    with pytest.raises(ValueError, match=r"a factory that builds a network of 2 classes. .*no such thing"):
        prepare(dataclasses.replace(asked, network="soft_code:fails"), progress=False)


def test_what_has_no_effect_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    data = pictures(tmp_path / "all")
    with pytest.raises(ValueError, match="`interpolation` should be given with --resize"):
        prepare(wanted(checkpoint, data, size=16, interpolation="bicubic"), progress=False)
    with pytest.raises(ValueError, match="`resize` should be given with --size"):
        prepare(wanted(checkpoint, data, resize=20), progress=False)
    assert prepare(wanted(checkpoint, data, size=16), progress=False).shown["fit"] == "crop"
    pictures(tmp_path / "half" / "train")
    with pytest.raises(ValueError, match="should be a folder with test/, or one tree of class folders"):
        prepare(wanted(checkpoint, tmp_path / "half"), progress=False)


def test_names_of_shifts_are_their_own(named: Path, tmp_path: Path) -> None:
    data, other = pictures(tmp_path / "all"), pictures(tmp_path / "other", seed=3)
    asked = wanted(named, data, shifts={"fog": other})
    prepare(asked, progress=False)
    for changed in (dataclasses.replace(asked, corruptions=("all",)), wanted(named, data, shifts={"test": other})):
        with pytest.raises(ValueError, match="`shift` should be a name that no other test set has"):
            prepare(changed, progress=False)
    words = [
        "audit",
        str(named),
        "--data",
        str(data),
        "--model",
        "small",
        "--shift",
        f"x={other}",
        "--shift",
        f"x={data}",
    ]
    answer = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "a")])
    assert answer.exit_code == 2
    assert "no other test set has" in answer.output


@pytest.mark.parametrize(("option", "text"), [("mean", "127,127,127"), ("std", "64,64,64")])
def test_channels_of_grey_levels_are_refused(option: str, text: str, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["audit", "net.pt", f"--{option}", text, "--out", str(tmp_path / "a")])
    assert answer.exit_code == 2
    assert f"`{option}` should be three numbers in 0..1" in answer.stderr
    assert "divide grey levels by 255" in answer.stderr


def test_a_file_that_cannot_be_read_is_not_taken_for_the_place_to_write(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, names = pictures(tmp_path / "all"), tmp_path / "names.txt"
    names.write_text("\n".join(NAMES))
    words = ["audit", str(checkpoint), "--data", str(data), "--model", "small", "--corruptions", "none"]
    words += ["--classes", str(names), "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]

    def refuse(self: Path, *_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    answer = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "a")])
    assert answer.exit_code == 2
    assert (
        f"`file` should be one that can be read or written. Found `file = {names}: Permission denied`" in answer.stderr
    )


def test_bad_models_and_places_are_one_line(checkpoint: Path, tmp_path: Path) -> None:
    data = pictures(tmp_path / "all")
    words = ["audit", str(checkpoint), "--data", str(data), "--model", "small", "--corruptions", "none"]
    words += ["--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"]
    (tmp_path / "file").write_text("")
    place = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "file" / "a")])
    assert place.exit_code == 2
    assert "Traceback" not in place.output
    tensors = models.read_weights(checkpoint)
    broken = {name: tensor * float("nan") if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    safetensors.torch.save_file(broken, tmp_path / "nan.safetensors")
    words[1] = str(tmp_path / "nan.safetensors")
    nan = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "b")])
    assert nan.exit_code == 2
    assert "not finite" in nan.output
    assert "checkpoint yet" not in nan.output


@pytest.mark.slow
def test_ranks_share_the_images(named: Path, tmp_path: Path) -> None:
    data = pictures(tmp_path / "all", each=21)
    words = ["audit", str(named), "--data", str(data), "--model", "small", "--corruptions", "fog,pixelate"]
    words += [
        "--mean",
        "0.5,0.5,0.5",
        "--std",
        "0.25,0.25,0.25",
        "--batch-size",
        "8",
        "--validation",
        str(pictures(tmp_path / "more", seed=1)),
    ]
    alone = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "one")])
    assert alone.exit_code == 0, alone.output
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "shiftcal"]
    two = subprocess.run(
        [*command, *words, "--out", str(tmp_path / "two")],
        capture_output=True, text=True, check=False, timeout=300, env=environment,
    )  # fmt: skip
    assert two.returncode == 0, two.stderr[-3000:]
    assert two.stdout.count("Audit: ") == 1, "one rank speaks"
    one, other = read_audit(tmp_path / "one"), read_audit(tmp_path / "two")
    assert other.device["processes"] == 2
    for a, b in zip((one.clean, *one.shifts), (other.clean, *other.shifts), strict=True):
        assert (a.shift, a.severity, a.n) == (b.shift, b.severity, b.n)
        assert (a.ece, a.nll, a.aurc) == pytest.approx((b.ece, b.nll, b.aurc), abs=1e-6)
    assert one.verdict == other.verdict


def test_an_audit_of_images_keeps_samples_beside_its_record(checkpoint: Path, tmp_path: Path) -> None:
    data, other = pictures(tmp_path / "data"), pictures(tmp_path / "other", seed=1)
    words = ["audit", str(checkpoint), "--model", "small", "--data", str(data), "--shift", f"dusk={other}"]
    words += ["--corruptions", "contrast", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25", "--out"]
    result = CliRunner().invoke(app, [*words, str(tmp_path / "with")])
    assert result.exit_code == 0, result.stderr
    found = read_gallery(tmp_path / "with")
    assert {(one.shift, one.severity) for one in found} == {(None, None), ("dusk", None), ("contrast", 3)}
    assert all(one.true in NAMES and one.right == (one.true == one.predicted) for one in found)
    result = CliRunner().invoke(app, [*words, str(tmp_path / "without"), "--no-gallery"])
    assert result.exit_code == 0, result.stderr
    assert not (tmp_path / "without" / "gallery.json").exists()
    one, two = (read_audit(tmp_path / name).model_dump(exclude={"seconds", "started"}) for name in ("with", "without"))
    assert one == two
    again = CliRunner().invoke(app, [*words, str(tmp_path / "with")])
    assert again.exit_code == 0
    assert "finished earlier" in again.stdout
