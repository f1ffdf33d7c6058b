"""What is found in folders: images of the formats that are read, and a word about everything else."""

import os
from pathlib import Path

import pytest
from PIL import Image

from shiftcal import data
from shiftcal._errors import UnreadableError
from shiftcal.data.files.listing import find_images, list_images


def pictures(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(root / name, format="PNG")
    return root


def test_pictures_of_formats_that_are_not_read_are_told(tmp_path: Path) -> None:
    pictures(tmp_path, "cat/1.png", "cat/2.gif", "cat/3.GIF", "dog/1.png", "dog/2.heic", "dog/notes.txt")
    with pytest.warns(UserWarning, match=r"left out: 2 \.gif, 1 \.heic"):
        assert len(find_images(tmp_path).files) == 2
    with pytest.warns(UserWarning, match=r"left out: 2 \.gif, 1 \.heic"):
        assert len(list_images(tmp_path)) == 2


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere, which does not exist"):
        find_images(tmp_path / "nowhere")


def test_parts_that_are_taken_for_classes_are_told(tmp_path: Path) -> None:
    names = [f"{part}/{kind}/{k}.png" for part in ("training", "testing") for kind in ("cat", "dog") for k in range(12)]
    with pytest.warns(UserWarning, match="taken to be testing, training, and each of these folders has cat, dog in it"):
        assert data.load("folder", root=pictures(tmp_path, *names)).classes == ("testing", "training")


def test_folders_inside_class_folders_are_no_parts(tmp_path: Path) -> None:
    """As Tiny-ImageNet has them, and cameras that not every class was seen by."""
    one = pictures(tmp_path / "one", *(f"{kind}/images/{k}.png" for kind in ("cat", "dog") for k in range(12)))
    assert data.load("folder", root=one).classes == ("cat", "dog")
    names = [f"cat/{camera}/{k}.png" for camera in ("left", "right") for k in range(12)]
    two = pictures(tmp_path / "two", *names, *(f"dog/left/{k}.png" for k in range(12)))
    assert data.load("folder", root=two).classes == ("cat", "dog")


def test_what_is_hidden_inside_class_folders_is_left_out(tmp_path: Path) -> None:
    """As macOS and notebooks leave it."""
    pictures(tmp_path, "cat/1.png", "cat/._1.png", "cat/.ipynb_checkpoints/1.png", "dog/1.png", "dog/.thumbs/2.gif")
    assert [path.name for path in find_images(tmp_path).files] == ["1.png", "1.png"]
    assert len(list_images(tmp_path)) == 2


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    pictures(tmp_path, "data/cat/1.png", "data/dog/1.png", "elsewhere/2.png", "elsewhere/deep/3.png")
    (tmp_path / "data" / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "deep" / "up").symlink_to(tmp_path / "elsewhere")
    assert sorted(path.name for path in find_images(tmp_path / "data").files) == ["1.png", "1.png", "2.png", "3.png"]
    assert len(list_images(tmp_path / "data")) == 4
    (tmp_path / "data" / "cat" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "dog" / "itself").symlink_to(tmp_path / "data" / "dog")
    assert len(find_images(tmp_path / "data").files) == len(list_images(tmp_path / "data")) == 4


def test_a_folder_that_may_not_be_read_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path, "cat/1.png", "dog/1.png")
    listed = os.scandir

    def refuse(place: object) -> object:
        if str(place).endswith("dog"):
            raise PermissionError(13, "Permission denied", str(place))
        return listed(place)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "scandir", refuse)
    for find in (find_images, list_images):
        with pytest.raises(ValueError, match=r"`folder` should be a folder whose paths can be listed.*dog"):
            find(tmp_path)


def test_links_that_lead_nowhere_are_images_that_cannot_be_read(tmp_path: Path) -> None:
    root = pictures(tmp_path, *(f"{kind}/{k}.png" for kind in ("cat", "dog") for k in range(10)))
    (root / "cat" / "annexed.png").symlink_to("/no/such/annex")
    assert root / "cat" / "annexed.png" in find_images(root).files
    with pytest.raises(UnreadableError, match=r"annexed\.png"):
        data.load("folder", root=root, progress=False)


def test_images_beside_the_class_folders_are_told_of(tmp_path: Path) -> None:
    root = pictures(tmp_path, "cat/1.png", "dog/1.png", "stray.png")
    with pytest.warns(UserWarning, match="1 images beside the class folders"):
        assert len(find_images(root).classes) == 2


def test_names_that_are_no_utf8_are_refused_before_training(tmp_path: Path) -> None:
    root = pictures(tmp_path, "cat/1.png", "dog/1.png")
    (root / "cat").rename(root / os.fsdecode(b"M\xfcll"))
    for look in (find_images, list_images):
        with pytest.raises(ValueError, match=r"`folder` should be one whose names are UTF-8.*b'M\\xfcll"):
            look(root)
    one = pictures(tmp_path / "files", "cat/1.png", "dog/1.png")
    (one / "cat" / "1.png").rename(one / "cat" / os.fsdecode(b"h\xfct.png"))
    for look in (find_images, list_images):
        with pytest.raises(ValueError, match=r"UTF-8.*b'cat/h\\xfct\.png'"):
            look(one)
