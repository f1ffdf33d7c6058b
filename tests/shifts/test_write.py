"""Corrupted test sets on disk: written in the official layouts, resumed, and read back."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stand_ins import write_class_folders
from typer.testing import CliRunner

from shiftcal import corrupt, data, evaluate
from shiftcal.cli import app
from shiftcal.data.files.images import read_image
from shiftcal.data.files.listing import find_images
from shiftcal.models import build
from shiftcal.shifts.read import load_corrupted
from shiftcal.shifts.source import open_source
from shiftcal.shifts.write import preview, write_corrupted

NAMES = ["gaussian_noise", "snow", "contrast"]


@pytest.fixture
def clean(tmp_path: Path, natural_images: torch.Tensor) -> Path:
    """An array of 50 images, and their labels beside it."""
    np.save(tmp_path / "test.npy", natural_images[:50].permute(0, 2, 3, 1).numpy())
    np.save(tmp_path / "labels.npy", np.arange(50) % 10)
    return tmp_path / "test.npy"


@pytest.fixture
def folder(tmp_path: Path, natural_images: torch.Tensor) -> Path:
    """Three class folders with 4 images each; the last class is nested, one image is larger."""
    root = tmp_path / "images"
    for k, name in enumerate(["ant", "bee", "cat/images"]):
        (root / name).mkdir(parents=True)
        for i in range(4):
            array = natural_images[4 * k + i].permute(1, 2, 0).numpy()
            Image.fromarray(array).save(root / name / f"{i}.png")
    return root


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["corrupt", *map(str, arguments)])
    return result.exit_code, result.output


def test_arrays_have_the_layout_of_cifar_10_c(clean: Path, tmp_path: Path, natural_images: torch.Tensor) -> None:
    code, output = run(clean, tmp_path / "out", "--names", ",".join(NAMES))
    assert code == 0, output
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "contrast.npy",
        "corrupted.json",
        "gaussian_noise.npy",
        "labels.npy",
        "snow.npy",
    ]
    labels = np.load(tmp_path / "out" / "labels.npy")
    assert labels.dtype == np.uint8
    assert labels.tolist() == (list(np.arange(50) % 10)) * 5
    for name in NAMES:
        array = np.load(tmp_path / "out" / f"{name}.npy")
        assert (array.shape, array.dtype) == ((250, 32, 32, 3), np.uint8)
        for severity in range(1, 6):
            expected = corrupt(natural_images[:50], name, severity)
            ours = torch.from_numpy(array[50 * (severity - 1) : 50 * severity]).permute(0, 3, 1, 2)
            assert torch.equal(ours, expected)
            split = load_corrupted(tmp_path / "out", name, severity)
            assert torch.equal(split.images, expected)
            assert split.targets.tolist() == list(np.arange(50) % 10)
    manifest = json.loads((tmp_path / "out" / "corrupted.json").read_text())
    assert manifest["images"] == 50
    assert manifest["frost"] is None, "there is none among them"
    assert manifest["versions"]["torch"]


def test_chosen_severities_and_other_settings(clean: Path, tmp_path: Path, natural_images: torch.Tensor) -> None:
    options = ("--names", "fog", "--severities", "5,2", "--seed", 7, "--constants", "imagenet", "--device", "cpu")
    assert run(clean, tmp_path / "out", *options)[0] == 0
    assert np.load(tmp_path / "out" / "fog.npy").shape == (100, 32, 32, 3)
    expected = corrupt(natural_images[:50], "fog", 5, seed=7, constants="imagenet")
    assert torch.equal(load_corrupted(tmp_path / "out", "fog", 5).images, expected)
    with pytest.raises(ValueError, match="`severity` should be one of 2, 5, which the files hold"):
        load_corrupted(tmp_path / "out", "fog", 3)


def test_trees_have_the_layout_of_imagenet_c(folder: Path, tmp_path: Path) -> None:
    code, output = run(folder, tmp_path / "out", "--names", "snow", "--severities", "1,4")
    assert code == 0, output
    files = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.png"))
    assert len(files) == 24
    assert files[0] == "snow/1/ant/0.png"
    assert files[-1] == "snow/4/cat/images/3.png"
    tree = find_images(folder)
    images = torch.stack([read_image(path) for path in tree.files])
    split = load_corrupted(tmp_path / "out", "snow", 4)
    assert torch.equal(split.images, corrupt(images, "snow", 4))
    assert split.targets.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    bees = load_corrupted(tmp_path / "out", "snow", 4, classes=("bee",))
    assert bees.targets.tolist() == [0] * 4, "folders that are no class of the data set are left out"


def test_a_folder_can_become_arrays_and_its_images_one_size(folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (60, 90), (10, 200, 30)).save(folder / "ant" / "9.jpg", quality=95)
    code, output = run(folder, tmp_path / "a", "--names", "contrast", "--layout", "arrays")
    assert code == 2
    assert "`layout` should be 'tree' for images of several sizes" in output
    assert run(folder, tmp_path / "b", "--names", "contrast", "--layout", "arrays", "--size", "28")[0] == 0
    assert np.load(tmp_path / "b" / "contrast.npy").shape == (13 * 5, 28, 28, 3)
    assert run(folder, tmp_path / "c", "--names", "contrast", "--severities", "3")[0] == 0
    with Image.open(tmp_path / "c" / "contrast" / "3" / "ant" / "9.jpg") as image:
        assert image.size == (60, 90)
    with pytest.raises(ValueError, match=r"`folder` should be one with images of one size, \[3, 32, 32\]"):
        load_corrupted(tmp_path / "c", "contrast", 3)


def test_an_image_is_the_same_in_either_layout_and_batch(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftcal.shifts.source._VALUES_AT_A_TIME", 5 * 3072)
    write_corrupted(open_source(folder), tmp_path / "tree", names=["snow"], severities=[2], progress=False)
    monkeypatch.undo()
    source = open_source(folder)
    write_corrupted(source, tmp_path / "arrays", names=["snow"], severities=[2], layout="arrays", progress=False)
    first, second = (load_corrupted(tmp_path / name, "snow", 2) for name in ("tree", "arrays"))
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.targets, second.targets)


@pytest.mark.parametrize("limit", [1 << 28, 3072])
def test_files_are_decoded_once_if_they_fit(
    limit: int, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def counted(path: Path, size: int | None = None) -> torch.Tensor:
        reads.append(path)
        return read_image(path, size)

    monkeypatch.setattr("shiftcal.shifts.source.read_image", counted)
    monkeypatch.setattr("shiftcal.shifts.source._KEPT_BYTES", limit)
    source = open_source(folder)
    next(source.batches())  # a look at the first alone keeps nothing
    reads.clear()
    write_corrupted(source, tmp_path / "out", names=["contrast"], severities=[1, 2, 3], progress=False)
    assert len(reads) == (12 if limit > 3072 else 48)  # once to find the unreadable ones


def test_an_interrupted_run_is_completed(clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = open_source(clean), tmp_path / "out"
    write_corrupted(source, tmp_path / "whole", names=NAMES, progress=False)
    calls = 0

    def interrupted(*arguments: object, **options: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return corrupt(*arguments, **options)

    monkeypatch.setattr("shiftcal.shifts.write.corrupt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_corrupted(source, out, names=NAMES, progress=False)
    assert sorted(p.name for p in out.iterdir()) == ["corrupted.json", "gaussian_noise.npy", "labels.npy"]
    monkeypatch.undo()
    before = (out / "gaussian_noise.npy").stat().st_mtime_ns
    write_corrupted(source, out, names=NAMES, progress=False)
    assert (out / "gaussian_noise.npy").stat().st_mtime_ns == before
    for name in NAMES:
        assert (out / f"{name}.npy").read_bytes() == (tmp_path / "whole" / f"{name}.npy").read_bytes()
    write_corrupted(source, out, names=["fog"], progress=False)
    assert (out / "fog.npy").is_file(), "more corruptions may be added"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["arrays", "tree"])
def test_a_killed_run_leaves_nothing_half_written(layout: str, folder: Path, tmp_path: Path) -> None:
    def command(out: str, names: str) -> list[str]:
        words = ["corrupt", str(folder), str(tmp_path / out), "--layout", layout, "--names", names]
        return [sys.executable, "-m", "shiftcal", *words]

    killed = subprocess.Popen(command("out", "all"), stdout=subprocess.DEVNULL)
    done = tmp_path / "out" / ("gaussian_noise.npy" if layout == "arrays" else "gaussian_noise/2")
    deadline = time.monotonic() + 120
    while not done.exists() and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    names = ("gaussian_noise", "shot_noise")
    for out in ("out", "whole"):
        assert subprocess.run(command(out, ",".join(names)), check=False).returncode == 0
    for name in names:
        for severity in range(1, 6):
            first, second = (load_corrupted(tmp_path / out, name, severity) for out in ("out", "whole"))
            assert torch.equal(first.images, second.images)


@pytest.mark.slow
def test_memory_stays_below_a_gigabyte(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "test.npy", rng.integers(0, 256, (10_000, 32, 32, 3), dtype=np.uint8))
    code = """
import sys
from shiftcal import _machine
from shiftcal.cli import main
sys.argv = sys.argv[1:]
try:
    main()
finally:
    print(_machine.peak_memory())
"""
    words = ["shiftcal", "corrupt", "test.npy", "out", "--names", "shot_noise,zoom_blur,snow"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout.splitlines()[-1]) < 2**30


@pytest.mark.usefixtures("unchecked")
def test_bad_settings(clean: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("years of work")
    np.save(tmp_path / "grey.npy", np.zeros((4, 32, 32), dtype=np.uint8))
    np.save(tmp_path / "float.npy", np.zeros((4, 32, 32, 3)))
    (tmp_path / "cut.npy").write_bytes(clean.read_bytes()[:5000])
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    for arguments, message in [
        ((clean, out, "--names", "gausian_noise"), "Did you mean 'gaussian_noise'?"),
        ((clean, out, "--severities", "0"), "`severities` should be one or more of 1, 2, 3, 4, 5"),
        ((clean, out, "--severities", "6"), "`severities` should be one or more of 1, 2, 3, 4, 5"),
        ((clean, out, "--severities", "1.5"), "`severities` should be one or more of 1, 2, 3, 4, 5"),
        ((clean, out, "--names", ""), "`names` should be at least one corruption"),
        ((clean, out, "--constants", "cifar10"), "Did you mean 'cifar'?"),
        ((clean, out, "--layout", "tree"), "`layout` should be 'arrays' for an array"),
        ((clean, out, "--layout", "files"), "`layout` should be 'arrays' or 'tree'"),
        ((clean, out, "--size", "16"), "`size` should be left out for an array"),
        ((clean, out, "--labels", tmp_path / "grey.npy"), "`labels` should be 50 class indices, one per image"),
        ((clean, out, "--frost", tmp_path / "empty", "--names", "frost"), "`frost` should be a folder with images"),
        ((clean, tmp_path / "other"), "`destination` should be new, empty, or begun by this command"),
        ((clean, clean), "`destination` should be a folder"),
        ((tmp_path / "missing.npy", out), "`source` should be an .npy file of images, or a folder"),
        ((tmp_path / "grey.npy", out), "`file` should be uint8 images of shape [N, H, W, 3]"),
        ((tmp_path / "float.npy", out), "`file` should be uint8 images of shape [N, H, W, 3]"),
        ((tmp_path / "cut.npy", out), "`file` should be a whole .npy file"),
        ((tmp_path / "empty", out), "without images"),
        ((clean, out, "--preview"), "`DST` should be a PNG file with --preview"),
    ]:
        code, output = run(*arguments)
        assert code == 2, (arguments, output)
        assert message in output.replace("\n", " "), (arguments, output)
    assert (tmp_path / "other" / "thesis.txt").read_text() == "years of work"
    assert run(clean, out, "--names", "contrast")[0] == 0
    code, output = run(clean, out, "--names", "contrast", "--seed", "3")
    assert code == 2
    assert "made with seed = 0 instead of 3" in output
    code, output = run(folder, out, "--names", "contrast")
    assert code == 2
    assert "`destination` should be a folder begun with the same settings" in output


def test_nothing_finished_nothing_claimed(clean: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    Image.new("RGB", (60, 90)).save(folder / "ant" / "9.png")
    small = tmp_path / "small.npy"
    np.save(small, np.zeros((3, 8, 8, 3), dtype=np.uint8))
    for arguments, message in [
        ((clean, out, "--names", "fog", "--seed", "-1"), "`seed` should be an integer in 0..2³²−1"),
        ((folder, out, "--names", "fog", "--layout", "arrays"), "'tree' for images of several sizes"),
        ((small, out, "--names", "fog"), "`labels` should be 3 class indices"),
        ((folder, out, "--names", "fog", "--size", "8"), "`size` should be at least 16"),
        ((folder, out, "--names", "fog", "--labels", clean), "`labels` should be left out for files"),
        ((clean, out, "--names", "fog", "--device", "tpu"), "`device` should be one of auto, cpu, cuda"),
        ((folder, folder / "out", "--names", "fog"), "`destination` should be outside the source"),
        ((folder / "ant" / "0.png", out), "one image goes with --preview"),
    ]:
        code, output = run(*arguments)
        assert code == 2, (arguments, output)
        assert message in output.replace("\n", " "), (arguments, output)
        assert not out.exists(), arguments
    assert run(clean, out, "--names", "fog")[0] == 0


def test_labels_belong_to_the_source(clean: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.arange(50) * 10)
    np.save(tmp_path / "negative.npy", np.arange(50) - 1)
    assert run(clean, tmp_path / "out", "--names", "fog", "--labels", tmp_path / "wide.npy")[0] == 0
    assert load_corrupted(tmp_path / "out", "fog", 2).targets.tolist() == [10 * k for k in range(50)]
    code, output = run(clean, tmp_path / "out", "--names", "snow")
    assert code == 2, "the labels beside the array are others"
    assert "made with source" in output
    assert "`labels` should be at least 0" in run(clean, tmp_path / "n", "--labels", tmp_path / "negative.npy")[1]
    (tmp_path / "labels.npy").unlink()
    code, output = run(clean, tmp_path / "bare", "--names", "fog")
    assert code == 0
    assert "They have no labels.npy" in output
    np.save(tmp_path / "bare" / "labels.npy", np.arange(50) % 7)
    assert load_corrupted(tmp_path / "bare", "fog", 3).targets.tolist() == [k % 7 for k in range(50)]


def test_another_source_is_refused(clean: Path, folder: Path, tmp_path: Path) -> None:
    assert run(clean, tmp_path / "a", "--names", "fog")[0] == 0
    array = np.load(clean)
    array[7, 0, 0, 0] ^= 1
    np.save(clean, array)
    assert "made with source" in run(clean, tmp_path / "a", "--names", "snow")[1]
    assert run(folder, tmp_path / "b", "--names", "fog", "--severities", "1")[0] == 0
    Image.new("RGB", (32, 32)).save(folder / "bee" / "0.png")
    assert "made with source" in run(folder, tmp_path / "b", "--names", "snow", "--severities", "1")[1]


def test_frost_may_be_added_later_but_not_changed(clean: Path, tmp_path: Path) -> None:
    for name, level in (("dark", 0), ("light", 255)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (300, 250), (level,) * 3).save(tmp_path / name / "a.png")
    out = tmp_path / "out"
    assert run(clean, out, "--names", "fog")[0] == 0
    assert run(clean, out, "--names", "frost", "--frost", tmp_path / "light")[0] == 0
    assert json.loads((out / "corrupted.json").read_text())["frost"] == str(tmp_path / "light")
    assert load_corrupted(out, "frost", 1).images.float().mean() > 150, "the user's photographs are used"
    assert run(clean, out, "--names", "snow")[0] == 0
    assert "made with frost" in run(clean, out, "--names", "frost", "--frost", tmp_path / "dark")[1]


def test_an_interrupted_tree_goes_on_where_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftcal.shifts.source._VALUES_AT_A_TIME", 4 * 3072)
    source, calls = open_source(folder), []

    def interrupted(images: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        calls.append(len(images))
        if len(calls) == 6:
            raise KeyboardInterrupt
        return corrupt(images, *arguments, **options)

    monkeypatch.setattr("shiftcal.shifts.write.corrupt", interrupted)
    options = {"names": ["snow"], "severities": [1, 2], "progress": False}
    with pytest.raises(KeyboardInterrupt):
        write_corrupted(source, tmp_path / "out", **options)
    assert sorted(p.name for p in (tmp_path / "out" / "snow").iterdir()) == [".2.tmp", "1"]
    write_corrupted(source, tmp_path / "out", **options)
    assert len(calls) == 7, "three batches for each severity, and the one that was interrupted again"
    monkeypatch.undo()
    write_corrupted(open_source(folder), tmp_path / "whole", **options)
    for path in (tmp_path / "whole").rglob("*.png"):
        assert path.read_bytes() == (tmp_path / "out" / path.relative_to(tmp_path / "whole")).read_bytes()


def test_files_keep_their_format(folder: Path, tmp_path: Path) -> None:
    smooth = Image.linear_gradient("L").resize((64, 64)).convert("RGB")
    for kind in ("jpg", "webp", "bmp"):
        smooth.save(folder / "ant" / f"a.{kind}", quality=100)
    assert run(folder, tmp_path / "out", "--names", "contrast", "--severities", "1")[0] == 0
    with Image.open(tmp_path / "out" / "contrast" / "1" / "ant" / "a.jpg") as image:
        expected = io.BytesIO()
        smooth.save(expected, "JPEG", quality=85)
        assert image.quantization == Image.open(expected).quantization
    made = read_image(tmp_path / "out" / "contrast" / "1" / "ant" / "a.webp")
    source = read_image(folder / "ant" / "a.webp")
    assert torch.equal(made, corrupt(source[None], "contrast", 1)[0]), "lossless"


def test_severities_are_in_order_whatever_the_order_asked_for(clean: Path, tmp_path: Path) -> None:
    write_corrupted(open_source(clean), tmp_path / "out", names=["contrast"], severities=[4, 1], progress=False)
    spread = [load_corrupted(tmp_path / "out", "contrast", s).images.float().std() for s in (1, 4)]
    assert spread[0] > 1.5 * spread[1]


def test_a_full_disk_is_one_line(clean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    code, output = run(clean, tmp_path / "out", "--names", "fog")
    assert code == 1
    assert "should be a directory with room" in output
    assert not (tmp_path / "out").exists()


def test_the_first_image_is_previewed(clean: Path) -> None:
    _, rows = preview(open_source(clean), names=["contrast"], constants="cifar", seed=0, frost=None)
    assert np.array_equal(rows[0][0], np.load(clean)[0])
    assert len(rows[0]) == 6


@pytest.mark.parametrize(("size", "expected"), [((500, 332), (385, 256, 80)), ((500, 334), (383, 256, 80))])
def test_crops_are_torchvisions(size: tuple[int, int], expected: tuple[int, int, int], tmp_path: Path) -> None:
    width, height, left = expected
    ramp = np.tile(np.linspace(0, 255, size[0]).astype(np.uint8), (size[1], 1))
    Image.fromarray(np.dstack([ramp] * 3)).save(tmp_path / "a.png")
    whole = Image.open(tmp_path / "a.png").resize((width, height), Image.Resampling.BILINEAR)
    cut = np.asarray(whole)[16 : 16 + 224, left : left + 224]
    assert np.array_equal(read_image(tmp_path / "a.png", 224).permute(1, 2, 0).numpy(), cut)


def test_damaged_official_files(clean: Path, tmp_path: Path) -> None:
    root = tmp_path / "c"
    root.mkdir()
    images = np.zeros((50, 32, 32, 3), dtype=np.uint8)
    np.save(root / "fog.npy", images)
    with pytest.raises(ValueError, match=r"`root` should be a folder with labels.npy beside fog.npy"):
        load_corrupted(root, "fog", 1)
    np.save(root / "labels.npy", np.zeros(49, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"`file` should be 50 class indices \(or 10\), as fog.npy has images"):
        load_corrupted(root, "fog", 1)
    np.save(root / "labels.npy", np.zeros(10, dtype=np.uint8))
    assert len(load_corrupted(root, "fog", 5)) == 10
    np.save(root / "fog.npy", images[:49])
    with pytest.raises(ValueError, match=r"`file` should be as many images for each of 5 severities. .*49 images"):
        load_corrupted(root, "fog", 1)
    (root / "fog.npy").write_bytes((root / "fog.npy").read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"`file` should be a whole .npy file. .*fog.npy"):
        load_corrupted(root, "fog", 1)
    with pytest.raises(ValueError, match=r"`root` should be a folder with snow.npy or snow/2"):
        load_corrupted(root, "snow", 2)


def test_what_is_unpickled_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "fog.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"`file` should be a whole .npy file"):
        load_corrupted(tmp_path, "fog", 1)


def test_a_contact_sheet_shows_every_corruption(clean: Path, folder: Path, tmp_path: Path) -> None:
    for source in (clean, folder, folder / "ant" / "0.png"):
        assert run(source, tmp_path / "new" / "sheet.png", "--preview", "--names", "all,extra")[0] == 0
        with Image.open(tmp_path / "new" / "sheet.png") as sheet:
            assert sheet.height > 2 * sheet.width > 1000
    code, output = run(clean, tmp_path / "sheet.png", "--preview", "--names", "fogg")
    assert code == 2
    assert "Did you mean 'fog'?" in output


@pytest.mark.slow
def test_evaluation_reads_what_it_would_make(tmp_path: Path) -> None:
    dataset = data.load("shapes", train=8, validation=40, test=60)
    np.save(tmp_path / "test.npy", dataset.test.images.permute(0, 2, 3, 1).numpy())
    np.save(tmp_path / "labels.npy", dataset.test.targets.numpy())
    write_corrupted(open_source(tmp_path / "test.npy"), tmp_path / "out", names=["fog", "frost"], progress=False)
    torch.manual_seed(0)
    model = build("small", num_classes=8)
    made = evaluate(model, dataset, corruptions=["fog", "frost"], progress=False)
    read = evaluate(model, dataset, corruptions=["fog", "frost"], corrupted=tmp_path / "out", progress=False)
    assert made.shifts == read.shifts
    assert made.corruptions.frost in ("imagecorruptions", "drawn")
    assert read.corruptions == made.corruptions.model_copy(update={"read_from": "out"})
    few = replace(dataset, test=dataset.validation)
    with pytest.raises(ValueError, match=r"`file` should be 40 images for each severity. .*fog.npy: 60"):
        evaluate(model, few, corruptions=["fog"], corrupted=tmp_path / "out", progress=False)


@pytest.mark.slow
def test_all_75_shifts_need_no_files() -> None:
    dataset = data.load("shapes", train=8, validation=24, test=24)
    torch.manual_seed(0)
    result = evaluate(build("small", num_classes=8), dataset, corruptions=["all"], progress=False)
    assert len([cell for cell in result.shifts if cell.shift not in dataset.shifts]) == 75


def test_unreadable_images_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "bee" / "1.png").write_bytes(b"no image")
    code, output = run(folder, tmp_path / "out", "--names", "fog")
    assert code == 2
    assert "`images` should be readable, at least 99 % of them" in output
    assert os.sep + "1.png" in output.replace("\n", "")
    listed = (tmp_path / "out" / "unreadable.txt").read_text().splitlines()
    assert [line.partition(": ")[0] for line in listed] == [str(folder / "bee" / "1.png")]
    (folder / "bee" / "1.png").unlink()
    code, output = run(folder, tmp_path / "out", "--names", "fog")
    assert code == 0, output
    assert not (tmp_path / "out" / "unreadable.txt").exists(), "the list of before is out of date"


@pytest.mark.parametrize("layout", ["arrays", "tree"])
def test_few_unreadable_images_are_left_out(layout: str, tmp_path: Path) -> None:
    write_class_folders(tmp_path / "images", 2, 60, size=(16, 16))
    bad = tmp_path / "images" / "kind0" / "7.jpg"
    bad.write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"left out: .*7.jpg.*\(1 of 120 so far\)"):
        write_corrupted(
            open_source(tmp_path / "images"),
            tmp_path / "out",
            names=["brightness"],
            severities=[1, 2],
            layout=layout,
            progress=False,
        )
    assert json.loads((tmp_path / "out" / "corrupted.json").read_text())["images"] == 119
    if layout == "arrays":
        assert len(np.load(tmp_path / "out" / "brightness.npy")) == 2 * 119
        assert np.bincount(np.load(tmp_path / "out" / "labels.npy")).tolist() == [2 * 59, 2 * 60]
    else:
        made = {path.name for path in (tmp_path / "out" / "brightness" / "1" / "kind0").iterdir()}
        assert made == {path.name for path in bad.parent.iterdir()} - {"7.jpg"}


def test_what_a_killed_process_left_half_written_is_removed(clean: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_corrupted(open_source(clean), out, names=["fog"], severities=[1], progress=False)
    (out / ".snow.npy.123456.tmp").write_bytes(bytes(1000))
    (out / ".labels.npy.99.tmp").write_bytes(b"x")
    write_corrupted(open_source(clean), out, names=["fog", "brightness"], severities=[1], progress=False)
    assert not list(out.glob(".*"))
    assert {path.name for path in out.iterdir()} == {"fog.npy", "brightness.npy", "labels.npy", "corrupted.json"}
