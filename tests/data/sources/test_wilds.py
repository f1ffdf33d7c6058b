"""The WILDS sets, from stand-ins with the official file names and columns."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stand_ins import write_camelyon17, write_fmow, write_iwildcam

from shiftcal import data
from shiftcal.data.files.images import read_image

WRITE = {"camelyon17": write_camelyon17, "iwildcam": write_iwildcam, "fmow": write_fmow}


@pytest.mark.parametrize("name", WRITE)
def test_found_in_its_folder_or_the_one_above(name: str, tmp_path: Path) -> None:
    root = WRITE[name](tmp_path)
    above, inside = (data.load(name, root=place, progress=False) for place in (tmp_path, root))
    assert above.classes == inside.classes
    assert torch.equal(above.train.images, inside.train.images)
    assert inside.preprocess.mean == (0.485, 0.456, 0.406)
    assert list(inside.shifts) == ["test"]
    assert list(inside.other_tests) == ["val"]


def test_camelyon17(tmp_path: Path) -> None:
    root = write_camelyon17(tmp_path)
    loaded = data.load("camelyon17", root=root, progress=False)
    assert loaded.classes == ("normal", "tumor")
    # Hospitals 1 and 2 are the shifted sets whatever the split column says.
    sizes = (loaded.train, loaded.validation, loaded.test, loaded.other_tests["val"], loaded.shifts["test"][0])
    assert [len(split) for split in sizes] == [4, 4, 4, 4, 4]
    assert loaded.test is loaded.validation, "there is no in-distribution test set"
    assert loaded.train.targets.tolist() == [0, 1, 0, 1]
    for split, node in (
        (loaded.shifts["test"][0], "patient_006_node_2"),
        (loaded.other_tests["val"], "patient_005_node_1"),
    ):
        files = sorted((root / "patches" / node).iterdir(), key=lambda path: int(path.name.split("_")[6]))
        expected = [np.array(Image.open(file).convert("RGB")) for file in files]
        assert np.array_equal(split.images.permute(0, 2, 3, 1).numpy(), np.stack(expected))
    first = Image.open(root / "patches/patient_004_node_0/patch_patient_004_node_0_x_3328_y_21792.png").convert("RGB")
    assert np.array_equal(loaded.train.images[0].permute(1, 2, 0).numpy(), np.array(first))


def test_iwildcam(tmp_path: Path) -> None:
    root = write_iwildcam(tmp_path)
    loaded = data.load("iwildcam", root=root, size=32, progress=False)
    assert loaded.classes == ("empty", "tayassu pecari", "cuniculus paca")
    assert [len(s) for s in (loaded.train, loaded.validation, loaded.test)] == [6, 3, 3]
    assert loaded.train.shape == (3, 32, 32)
    whole = data.load("iwildcam", root=root, progress=False).train.images
    assert torch.equal(whole[0], read_image(root / "train" / "00000000.jpg", 448, "stretch"))
    (root / "categories.csv").unlink()
    assert data.load("iwildcam", root=root, size=32, progress=False).classes == ("0", "1", "2")


def test_fmow_is_divided_by_time(tmp_path: Path) -> None:
    root = write_fmow(tmp_path)
    loaded = data.load("fmow", root=root, progress=False)
    assert loaded.classes == ("airport", "multi-unit_residential", "zoo")
    for number in range(3):  # sequestered images need not be there
        (root / "images" / f"rgb_img_{number}.png").unlink()
    assert len(data.load("fmow", root=root, progress=False).train) == 6
    # Training images of 2014, sequestered ones, a val of 2016 and a test of 2014 are in no split.
    expected = {"train": (1, 2), "id_val": (4,), "id_test": (6,), "val": (5, 8), "test": (10, 11)}
    splits = {"train": loaded.train, "id_val": loaded.validation, "id_test": loaded.test}
    splits |= {"val": loaded.other_tests["val"], "test": loaded.shifts["test"][0]}
    for name, groups in expected.items():
        numbers = [3 * group + k for group in groups for k in range(3)]
        for image, number in zip(splits[name].images, numbers, strict=True):
            pixels = np.array(Image.open(root / "images" / f"rgb_img_{number}.png"))
            assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels), name
        assert splits[name].targets.tolist() == [2, 0, 1] * len(groups)


def _cut_row(text: str) -> str:
    return text.rstrip("\n").rpartition(",")[0] + "\n"


@pytest.mark.parametrize(
    ("name", "metadata", "change", "message"),
    [
        ("camelyon17", "metadata.csv", lambda t: t.replace(",tumor,", ",label,"), "one with the columns patient, node"),
        (
            "camelyon17",
            "metadata.csv",
            lambda t: t.replace(",004,0,3328", ",004,0,9999"),
            "1 images missing, first",
        ),
        ("camelyon17", "metadata.csv", lambda t: t.partition("\n")[0] + "\n", "no rows"),
        ("iwildcam", "metadata.csv", _cut_row, "a row cut off"),
        ("iwildcam", "metadata.csv", lambda t: t.replace("id_val", "train"), "images of the splits .* none of id_val"),
        ("iwildcam", "metadata.csv", lambda t: t.replace(",0,2013", ",zero,2013"), "the one of the WILDS release"),
        ("fmow", "rgb_metadata.csv", lambda t: t.replace("2008-", "then-"), "the one of the WILDS release"),
    ],
)
def test_metadata_that_do_not_fit(
    name: str, metadata: str, change: Callable[[str], str], message: str, tmp_path: Path
) -> None:
    root = WRITE[name](tmp_path)
    path = root / metadata
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message):
        data.load(name, root=root, progress=False)


@pytest.mark.parametrize("name", WRITE)
def test_another_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"`data.root` should be a folder with .*metadata.csv .* of WILDS.*notes.txt"):
        data.load(name, root=tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        data.load(name, root=tmp_path / "missing")


def test_workers_reach_every_set(tmp_path: Path) -> None:
    root = write_camelyon17(tmp_path)
    loaded = data.load("camelyon17", root=root, loader="stream", progress=False).with_workers(3)
    for split in (loaded.train, loaded.validation, loaded.test, loaded.shifts["test"][0], loaded.other_tests["val"]):
        assert split.workers == 3
