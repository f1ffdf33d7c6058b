"""Files from elsewhere: weights, archives, images, arrays. Each is read, or refused in one line."""

import io
import pickle
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from faults.mutations import damaged_bytes
from PIL import Image
from stand_ins import Cifar, write_class_folders

from shiftcal import data
from shiftcal._errors import ParameterError
from shiftcal.data.files.download import unpack
from shiftcal.data.files.images import open_images, read_image
from shiftcal.data.files.prepare import prepare
from shiftcal.data.sources.cifar import unpickle
from shiftcal.models import build, load_weights


def refused(error: pytest.ExceptionInfo[ValueError]) -> bool:
    return isinstance(error.value, ParameterError) and "\n" not in str(error.value)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return build("small", 3)


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def changed(state: dict[str, torch.Tensor], **tensors: Any) -> dict[str, Any]:
    return dict(state) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}


WRONG_WEIGHTS = {
    "int keys": lambda state: saved(dict(enumerate(state.values()))),
    "meta": lambda state: saved(changed(state, classifier__bias=torch.empty(3, device="meta"))),
    "sparse": lambda state: saved(changed(state, classifier__bias=torch.zeros(3).to_sparse())),
    "integers": lambda state: saved(changed(state, classifier__bias=torch.zeros(3, dtype=torch.int8))),
    "not a tensor": lambda state: saved(changed(state, classifier__bias="x")),
    "a list": lambda state: saved(list(state.values())),
    "a module": lambda _: saved(torch.nn.Linear(1, 1)),
    "code": lambda _: pickle.dumps({"a": print}),
    "empty": lambda _: b"",
    "empty dictionary": lambda _: saved({}),
    "nested": lambda state: saved({"state_dict": {"state_dict": {"model": 3}}, "x": state}),
    "header of 2**60 bytes": lambda _: (2**60).to_bytes(8, "little") + b"{}",
    "text": lambda _: b"not weights at all" * 10,
}


@pytest.mark.parametrize("kind", WRONG_WEIGHTS)
def test_weights_that_are_none(kind: str, model: torch.nn.Module, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(WRONG_WEIGHTS[kind](model.state_dict()))
    with pytest.raises(ValueError, match="`weights` should be") as caught:
        load_weights(tmp_path / "weights", model)
    assert refused(caught)


def test_random_damage_to_weights(model: torch.nn.Module, tmp_path: Path) -> None:
    rng, state = random.Random(0), model.state_dict()
    for whole in (saved(state), safetensors.torch.save(state)):
        for _ in range(30):
            (tmp_path / "weights").write_bytes(damaged_bytes(whole, rng))
            try:
                load_weights(tmp_path / "weights", model)
            except ParameterError as error:
                assert "\n" not in str(error)  # noqa: PT017 (damage to a number alone is not seen)


def zipped(path: Path, *members: tuple[str, bytes], **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def tarred(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def encrypted(path: Path) -> Path:
    """A zip whose member says that it is encrypted."""
    raw = bytearray(zipped(path, ("a.txt", b"secret")).read_bytes())
    raw[raw.find(b"PK\x03\x04") + 6] |= 1
    raw[raw.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    return path


def oddly_compressed(path: Path) -> Path:
    raw = bytearray(zipped(path, ("a.txt", b"x")).read_bytes())
    raw[raw.find(b"PK\x03\x04") + 8] = raw[raw.find(b"PK\x01\x02") + 10] = 97
    path.write_bytes(raw)
    return path


DEEP = "/".join(["d"] * 2000) + "/a.png"
WRONG_ARCHIVES = {
    "encrypted": encrypted,
    "oddly compressed": oddly_compressed,
    "deep zip": lambda path: zipped(path, (DEEP, b"x")),
    "deep tar": lambda path: tarred(path, (DEEP, b"x")),
    "upwards": lambda path: zipped(path, ("../a.png", b"x")),
    "absolute": lambda path: tarred(path, ("/tmp/a.png", b"x")),
    "bomb in a zip": lambda path: zipped(path, ("a", bytes(3 * 10**7)), compression=zipfile.ZIP_DEFLATED),
    "bomb in a tar": lambda path: tarred(path, ("a", bytes(3 * 10**7))),
    "no archive": lambda path: path.write_bytes(b"no archive") and path,
    "nothing": lambda path: path.write_bytes(b"") or path,
}


@pytest.mark.parametrize("kind", WRONG_ARCHIVES)
def test_archives_that_are_refused_leave_nothing(kind: str, tmp_path: Path) -> None:
    archive = WRONG_ARCHIVES[kind](tmp_path / "archive")
    with pytest.raises(ValueError, match="`archive` should be") as caught:
        unpack(archive, tmp_path / "folder", 10**7)
    assert refused(caught)
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_random_damage_to_archives(tmp_path: Path) -> None:
    rng = random.Random(0)
    members = [(f"a/{n}.png", rng.randbytes(500)) for n in range(5)]
    for whole in (zipped(tmp_path / "zip", *members), tarred(tmp_path / "tar", *members)):
        for number in range(30):
            (tmp_path / "damaged").write_bytes(damaged_bytes(whole.read_bytes(), rng))
            place = tmp_path / f"{whole.name}-{number}"
            try:
                unpack(tmp_path / "damaged", place)
            except ParameterError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert not place.exists()


def test_a_limit_can_be_raised(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", ("a", bytes(3 * 10**7)), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"at most 0.0 GB \(--max-gigabytes allows more\)"):
        unpack(archive, tmp_path / "folder", 10**6)
    unpack(archive, tmp_path / "folder", 10**8)
    assert (tmp_path / "folder" / "a").stat().st_size == 3 * 10**7


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHIFTCAL_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_wrong_archive_is_not_installed(home: Path, tmp_path: Path) -> None:
    wrong = zipped(tmp_path / "holiday.zip", ("photos/1.png", b"x"))
    with pytest.raises(ValueError, match="should be"):
        prepare("cifar10", wrong, progress=False)
    assert not any(home.glob("*cifar10*"))
    assert not any(home.glob(".*"))
    write_class_folders(tmp_path / "pets", 2, 3)
    with pytest.raises(ValueError, match="should be"):
        prepare("cifar10", tmp_path / "pets", progress=False)
    assert not any(home.glob("*cifar10*"))
    right = Cifar(tmp_path / "right", fine=False)
    made = prepare("cifar10", right.archive, progress=False)
    assert len(made.classes) == 10
    assert data.load("cifar10", progress=False).classes == made.classes


WRONG_PICKLES: dict[str, Any] = {
    "no keys": {},
    "another kind": {"data": 3, "labels": "x", "label_names": 5},
    "objects": {"data": np.array([None] * 3), "labels": [0] * 3, "label_names": ["a"]},
    "words": {"data": np.zeros((3, 3072), np.uint8), "labels": ["a", "b", "c"], "label_names": ["a"]},
    "short rows": {"data": np.zeros((3, 30), np.uint8), "labels": [0] * 3, "label_names": ["a"]},
}


@pytest.mark.parametrize("kind", WRONG_PICKLES)
def test_cifar_pickles_that_are_none(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("batches.meta", "test_batch", *(f"data_batch_{k}" for k in range(1, 6))):
        (folder / name).write_bytes(pickle.dumps(WRONG_PICKLES[kind], protocol=2))
    with pytest.raises(ValueError, match="should be") as caught:
        data.load("cifar10", root=tmp_path, progress=False)
    assert refused(caught)


def test_random_damage_to_pickles() -> None:
    rng = random.Random(0)
    whole = pickle.dumps({"data": np.zeros((3, 30), np.uint8), "labels": [0, 1, 2]}, protocol=2)
    for _ in range(200):
        try:
            unpickle(damaged_bytes(whole, rng))
        except ParameterError as error:
            assert isinstance(str(error), str)  # noqa: PT017


def test_arrays_with_a_forged_header(tmp_path: Path) -> None:
    whole = io.BytesIO()
    np.save(whole, np.zeros((2, 4, 4, 3), np.uint8))
    for old, new in ((b"(2, 4, 4, 3)", b"(-2, 4, 4, 3)"), (b"(2, 4,", b"(9**99,"), (b"|u1", b"|O "), (b"{", b"[")):
        (tmp_path / "a.npy").write_bytes(whole.getvalue().replace(old, new, 1))
        with pytest.raises(ValueError, match="`file` should be") as caught:
            open_images(tmp_path / "a.npy")
        assert refused(caught)


def test_a_path_too_deep_to_list(tmp_path: Path) -> None:
    code = (
        f"import os\nos.chdir({str(tmp_path)!r})\nfor _ in range(1500):\n    os.mkdir('deep')\n    os.chdir('deep')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    try:
        with pytest.raises(ValueError, match="should be") as caught:
            data.load("folder", root=tmp_path, progress=False)
        assert refused(caught)
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "deep")], check=True)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


def test_content_decides_the_decoder_and_only_named_formats_are_opened(tmp_path: Path) -> None:
    (tmp_path / "eps.png").write_bytes(EPS)
    Image.new("RGB", (8, 8)).save(tmp_path / "gif.png", format="GIF")
    Image.new("RGB", (8, 8)).save(tmp_path / "pcx.jpg", format="PCX")
    for name in ("eps.png", "gif.png", "pcx.jpg"):
        with pytest.raises(ValueError, match="no whole image of the formats PNG, JPEG") as caught:
            read_image(tmp_path / name)
        assert refused(caught)
    Image.new("RGB", (8, 8)).save(tmp_path / "jpeg.png", format="JPEG")
    assert read_image(tmp_path / "jpeg.png").shape == (3, 8, 8)


def test_thin_images(tmp_path: Path) -> None:
    Image.new("RGB", (1, 20_000)).save(tmp_path / "thread.png")
    with pytest.raises(ValueError, match="its 1 × 20000 pixels are too thin to become square"):
        read_image(tmp_path / "thread.png", 224)
    assert read_image(tmp_path / "thread.png").shape == (3, 20_000, 1)
    gradient = np.linspace(0, 255, 64 * 640).reshape(640, 64).astype(np.uint8)
    Image.fromarray(np.stack([gradient] * 3, -1)).save(tmp_path / "long.png")
    found = read_image(tmp_path / "long.png", 56)
    whole = Image.open(tmp_path / "long.png").resize((64, 640), Image.Resampling.BILINEAR).crop((4, 292, 60, 348))
    assert np.abs(found.permute(1, 2, 0).numpy().astype(int) - np.asarray(whole)).max() <= 1, "the middle stays"


def test_a_thin_image_takes_little_memory(tmp_path: Path) -> None:
    Image.new("RGB", (40, 4000)).save(tmp_path / "strip.png")
    code = (
        "import sys\nfrom pathlib import Path\nfrom shiftcal import _machine\n"
        "from shiftcal.data.files.images import read_image\n"
        "path = Path(sys.argv[1])\nread_image(path)\nbefore = _machine.peak_memory()\nread_image(path, 1000)\n"
        "print(_machine.peak_memory() - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "strip.png")], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 60 * 2**20  # resized whole it would be 1143 × 114,300 pixels, 392 MB
