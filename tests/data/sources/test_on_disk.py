"""Data sets on disk, from stand-ins with the official names of files and keys."""

import io
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stand_ins import PER_CLASS, Cifar, write_class_folders, write_tiny_imagenet

from shiftcal import data
from shiftcal._errors import UnreadableError
from shiftcal.data.files.images import read_image
from shiftcal.data.hold_out import hold_out
from shiftcal.data.sources.cifar import unpickle
from shiftcal.experiments.config import load_config
from shiftcal.experiments.run import complete, train
from shiftcal.experiments.setup import load_dataset


@pytest.fixture(scope="module", params=[False, True], ids=["cifar10", "cifar100"])
def cifar(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cifar:
    return Cifar(tmp_path_factory.mktemp("cifar"), request.param)


def as_set(*splits: data.MemorySplit) -> set[tuple[bytes, int]]:
    return {(i.numpy().tobytes(), int(t)) for s in splits for i, t in zip(s.images, s.targets, strict=True)}


def test_every_form_holds_the_same_images(cifar: Cifar) -> None:
    name = "cifar100" if cifar.fine else "cifar10"
    forms = [cifar.folder, cifar.folder.parent, cifar.binary, cifar.binary.parent, cifar.archive, cifar.archive.parent]
    for root in (*forms, cifar.tree):
        loaded = data.load(name, root=root, progress=False)
        assert loaded.classes == tuple(cifar.classes), root
        assert as_set(loaded.train, loaded.validation) == {
            (image.tobytes(), label) for image, label in zip(*cifar.train, strict=True)
        }
        assert as_set(loaded.test) == {(image.tobytes(), label) for image, label in zip(*cifar.test, strict=True)}
        assert loaded.validation.targets.bincount().tolist() == [PER_CLASS // 10] * len(cifar.classes)
        assert loaded.preprocess.mean == (0.4914, 0.4822, 0.4465)


def test_the_seed_decides_what_is_held_out(cifar: Cifar) -> None:
    name = "cifar100" if cifar.fine else "cifar10"
    first, again, other = (data.load(name, root=cifar.folder, seed=s).validation for s in (0, 0, 1))
    assert as_set(first) == as_set(again) != as_set(other)


def test_the_environment_names_the_folder_of_all(cifar: Cifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "cifar100" if cifar.fine else "cifar10"
    (tmp_path / name).symlink_to(cifar.folder.parent)
    monkeypatch.setenv("SHIFTCAL_DATA", str(tmp_path))
    assert len(data.load(name).test) == len(cifar.test[1])
    monkeypatch.setenv("SHIFTCAL_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(ValueError, match=f"`data.root` should be the folder of {name} .*shiftcal data prepare {name}"):
        data.load(name)


def test_damaged_cifar(cifar: Cifar, tmp_path: Path) -> None:
    name = "cifar100" if cifar.fine else "cifar10"
    with pytest.raises(ValueError, match=r"`data.root` should be a folder with cifar-.* Found .*: no such folder"):
        data.load(name, root=tmp_path / "missing")
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(ValueError, match=r"`data.root` should be a folder with cifar-.*: thesis.txt"):
        data.load(name, root=tmp_path)
    broken = tmp_path / cifar.archive.name
    broken.write_bytes(cifar.archive.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"`data.root` should be a whole archive"):
        data.load(name, root=tmp_path)
    for kind in (cifar.folder, cifar.binary):
        copy = tmp_path / kind.name
        copy.mkdir()
        for file in kind.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        test = next(p for p in copy.iterdir() if p.name.startswith("test"))
        test.write_bytes(test.read_bytes()[:-100])
        with pytest.raises(ValueError, match=r"`(pickle|data.root)` should be"):
            data.load(name, root=copy)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/shiftcal-was-here",)


def test_a_pickle_that_would_run_code_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`pickle` should be arrays and plain data alone. Found .*posix.system"):
        unpickle(pickle.dumps({"data": Evil()}))
    assert not Path("/tmp/shiftcal-was-here").exists()
    with pytest.raises(ValueError, match="`pickle` should be a dictionary"):
        unpickle(pickle.dumps([1, 2]))
    for protocol in range(5):
        content = unpickle(pickle.dumps({b"data": np.arange(6, dtype=np.uint8)}, protocol=protocol))
        assert content["data"].tolist() == list(range(6))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_imagenet(tmp_path)


def test_tiny_imagenet(tiny: Path) -> None:
    for root in (tiny, tiny.parent):
        loaded = data.load("tiny-imagenet", root=root, per_class=3, progress=False)
        assert loaded.classes == ("n00", "n01", "n02", "n03")
        assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (24, 12, 8)
        assert loaded.validation.targets.bincount().tolist() == [3] * 4
        assert loaded.test.targets.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]
        assert loaded.train.images.shape[1:] == (3, 64, 64)


def test_tiny_imagenets_labels_must_fit_its_images(tiny: Path) -> None:
    annotations = tiny / "val" / "val_annotations.txt"
    text = annotations.read_text()
    annotations.write_text(text.partition("\n")[2])
    with pytest.raises(ValueError, match=r"0 images missing, 1 without a label .val_7.JPEG."):
        data.load("tiny-imagenet", root=tiny, per_class=3, progress=False)
    annotations.write_text(text.replace("n03", "n99"))
    with pytest.raises(ValueError, match=r"`val_annotations.txt` should be lines of a file and its class"):
        data.load("tiny-imagenet", root=tiny, per_class=3, progress=False)
    annotations.unlink()
    with pytest.raises(ValueError, match=r"`data.root` should be a folder with train/ and val/val_anno"):
        data.load("tiny-imagenet", root=tiny)
    with pytest.raises(ValueError, match="`held out` should be fewer than the 9 images of class 0"):
        hold_out(torch.zeros(9, dtype=torch.int64), per_class=9)


def test_domains_hold_one_out(tmp_path: Path) -> None:
    for seed, domain in enumerate(["Art", "Clipart", "Product"]):
        write_class_folders(tmp_path / domain, 3, 20, seed=seed)
    loaded = data.load("pacs", root=tmp_path, holdout="Clipart", size=24, progress=False)
    assert loaded.name == "pacs"
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (96, 12, 12)
    assert list(loaded.shifts) == ["Clipart"]
    assert len(loaded.shifts["Clipart"][0]) == 60
    assert loaded.train.images.shape[1:] == (3, 24, 24)
    art = as_set(loaded.train, loaded.validation, loaded.test)
    assert not art & as_set(loaded.shifts["Clipart"][0])
    assert len(art) == 120, "no image is in two sets"
    with pytest.raises(ValueError, match=r"`data.holdout` should be given: --holdout and one of Art, Clipart, Product"):
        data.load("pacs", root=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"`data.root` should be given: --set data.root=FOLDER"):
        data.load("folder")
    with pytest.raises(ValueError, match=r"`data.holdout` should be one of Art, .*Did you mean 'Art'\?"):
        data.load("pacs", root=tmp_path, holdout="art", progress=False)
    write_class_folders(tmp_path / "Sketch", 2, 3)
    with pytest.raises(ValueError, match="`folder` should be one with a folder for each"):
        data.load("pacs", root=tmp_path, holdout="Clipart", size=24, progress=False)


def test_a_folder_with_train_and_test(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "train", 3, 20)
    write_class_folders(tmp_path / "test", 2, 5, seed=1)
    loaded = data.load("folder", root=tmp_path, size=16, progress=False)
    assert loaded.classes == ("kind0", "kind1", "kind2")
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (54, 6, 10)
    write_class_folders(tmp_path / "val", 3, 2, seed=2)
    loaded = data.load("folder", root=tmp_path, size=16, progress=False)
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (60, 6, 10)
    write_class_folders(tmp_path / "val" / "other", 1, 1)
    with pytest.raises(ValueError, match=r"`data.root` should be one whose classes are all in train/"):
        data.load("folder", root=tmp_path, size=16, progress=False)


def test_a_class_without_images_is_named_and_stays(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "one", 3, 20)
    shutil.rmtree(tmp_path / "one" / "kind1")
    (tmp_path / "one" / "kind1").mkdir()
    with pytest.warns(UserWarning, match=r"There are no images in .*kind1. Their classes stay"):
        loaded = data.load("folder", root=tmp_path / "one", size=16, progress=False)
    assert loaded.classes == ("kind0", "kind1", "kind2")
    assert loaded.train.targets.unique().tolist() == [0, 2]
    shutil.rmtree(tmp_path / "one" / "kind2")
    with pytest.raises(ValueError, match=r"one with images in at least 2 classes. .*kind1, without images"):
        data.load("folder", root=tmp_path / "one", size=16, progress=False)
    for seed, domain in enumerate(["a", "b"]):
        write_class_folders(tmp_path / "domains" / domain, 2, 10, seed=seed)
    for image in (tmp_path / "domains" / "a" / "kind1").iterdir():
        image.unlink()
    with pytest.raises(ValueError, match=r"images in at least 2 classes. .*a/kind1, without images"):
        data.load("pacs", root=tmp_path / "domains", holdout="b", size=16, progress=False)
    only = tmp_path / "only"
    write_class_folders(only / "a", 2, 10)
    with pytest.raises(ValueError, match=r"`data.root` should be a folder with two domains or more"):
        data.load("pacs", root=only, holdout="a", progress=False)


def test_a_folder_of_one_tree(tmp_path: Path) -> None:
    write_class_folders(tmp_path, 2, 30)
    loaded = data.load("folder", root=tmp_path, size=16, progress=False)
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (48, 6, 6)
    assert loaded.validation.targets.bincount().tolist() == [3, 3]
    Image.new("RGB", (99, 77)).save(tmp_path / "kind0" / "odd.png")
    with pytest.raises(ValueError, match=r"`images` should be of one size, .*data\.size, makes them one"):
        data.load("folder", root=tmp_path, progress=False)


def test_unreadable_images_are_named_and_left_out_below_one_in_a_hundred(tmp_path: Path) -> None:
    write_class_folders(tmp_path, 2, 101)
    (tmp_path / "kind1" / "7.jpg").write_bytes(b"no image")
    cut = (tmp_path / "kind0" / "3.jpg").read_bytes()[:300]
    (tmp_path / "kind0" / "3.jpg").write_bytes(cut)
    with pytest.warns(UserWarning, match=r"left out: .*(3|7).jpg") as caught:
        loaded = data.load("folder", root=tmp_path, size=16, progress=False)
    assert len(caught) == 2
    assert len(loaded.train) + len(loaded.validation) + len(loaded.test) == 200
    (tmp_path / "kind1" / "8.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"readable, at least 99 % of them .*3.jpg.*8.jpg") as error:
        data.load("folder", root=tmp_path, size=16, progress=False)
    assert f"All are listed in {error.value.saved_to}." in str(error.value)
    assert [line.partition(": ")[0][-5:] for line in error.value.saved_to.read_text().splitlines()] == [
        *("3.jpg", "7.jpg", "8.jpg"),
    ]


@pytest.mark.parametrize("loader", ["memory", "stream"])
def test_all_unreadable_images_are_listed_in_the_output_directory(loader: str, tmp_path: Path) -> None:
    write_class_folders(tmp_path / "images", 2, 40)
    bad = [tmp_path / "images" / f"kind{k}" / f"{i}.jpg" for k in range(2) for i in range(10, 20)]
    for path in bad:
        path.write_bytes(b"no image")
    words = ["data.name=folder", f"data.root={tmp_path / 'images'}", "data.size=16", "data.workers=0"]
    words += [f"data.loader={loader}", "train.epochs=1", "method=ce", "evaluation.corruptions=[]"]
    config, out = load_config("demo", words), tmp_path / "out"
    with pytest.raises(UnreadableError, match=f"All are listed in {out / 'unreadable.txt'}") as error:
        complete(config, out, progress=False)
    listed = {line.partition(": ")[0] for line in (out / "unreadable.txt").read_text().splitlines()}
    expected = set(map(str, bad))
    if loader == "stream":  # of the training images, which were being decoded
        expected &= set(map(str, load_dataset(config).train.files))
    assert listed == expected
    copied = pickle.loads(pickle.dumps(error.value))
    assert (copied.failures, str(copied)) == (error.value.failures, str(error.value))
    for path in bad:
        path.unlink()
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    complete(config, out, progress=False, resume=True)
    assert not (out / "unreadable.txt").exists()


def test_a_directory_of_others_gets_no_list(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "images", 2, 20)
    (tmp_path / "images" / "kind0" / "1.jpg").write_bytes(b"no image")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").touch()
    config = load_config("demo", ["data.name=folder", f"data.root={tmp_path / 'images'}", "data.size=16"])
    with pytest.raises(UnreadableError):
        complete(config, tmp_path / "theirs", progress=False)
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["notes.txt"]


def test_every_kind_of_image_becomes_rgb(tmp_path: Path) -> None:
    ramp = np.linspace(0, 1, 16)[:, None] * np.ones((1, 16))
    colour = Image.fromarray((255 * np.dstack([ramp, ramp.T, 1 - ramp])).astype(np.uint8))
    grey = Image.fromarray((255 * ramp).astype(np.uint8))
    images = {
        "rgb.png": colour,
        "grey.png": grey,
        "deep.png": Image.fromarray((65535 * ramp).astype(np.uint16)),
        "palette.png": colour.quantize(200),
        "clear.png": colour.convert("RGBA"),
        "print.jpg": colour.convert("CMYK"),
    }
    for name, image in images.items():
        image.save(tmp_path / name)
    colour.save(tmp_path / "moving.png", save_all=True, append_images=[grey.convert("RGB")])
    expected = torch.from_numpy(np.array(colour)).permute(2, 0, 1).float()
    for name in ("rgb.png", "palette.png", "clear.png", "print.jpg", "moving.png"):
        difference = (read_image(tmp_path / name).float() - expected).abs().mean()
        assert difference < (12 if name in ("palette.png", "print.jpg") else 0.01), name
    for name in ("grey.png", "deep.png"):
        image = read_image(tmp_path / name)
        assert (image.float() - torch.from_numpy(255 * ramp)).abs().max() <= 1, name


def test_fits(tmp_path: Path) -> None:
    image = Image.new("RGB", (200, 100))
    image.paste((255, 255, 255), (50, 0, 150, 100))
    image.save(tmp_path / "wide.png")
    cropped, stretched = (read_image(tmp_path / "wide.png", 28, fit) for fit in ("crop", "stretch"))
    assert cropped.shape == stretched.shape == (3, 28, 28)
    assert cropped.min() > 200, "the middle square is white"
    assert stretched[:, :, 0].max() == 0


@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_an_image_that_has_the_size_stays_as_it_is(fit: str, tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png", 24, fit).permute(1, 2, 0).numpy(), array)


def test_a_recipe_names_data_on_disk(cifar: Cifar, tmp_path: Path) -> None:
    name = "cifar100" if cifar.fine else "cifar10"
    words = [f"data.name={name}", f"data.root={cifar.folder}", "train.epochs=1", "method=ce"]
    config = load_config("demo", [*words, "data.train=6000", "evaluation.corruptions=[]"])
    assert load_dataset(config).name == name
    assert len(train(config, progress=False).history) == 1
    with pytest.raises(ValueError, match=f"`data.size` should be left out for {name}, which does not take it"):
        load_dataset(load_config("demo", [*words, "data.size=32"]))
    with pytest.raises(ValueError, match=r"`data.name` should be one of .* Did you mean 'cifar10'\?"):
        load_dataset(load_config("demo", ["data.name=cifar-10"]))


def test_unpickling_needs_whole_files() -> None:
    whole = pickle.dumps({b"data": np.zeros((4, 3072), dtype=np.uint8)})
    for length in (0, 10, len(whole) // 2):
        with pytest.raises(ValueError, match="`pickle` should be whole"):
            unpickle(whole[:length])
    assert io.BytesIO(whole).read() == whole


def test_a_test_set_may_lack_the_first_class(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "train", 3, 20)
    write_class_folders(tmp_path / "test", 3, 4, seed=1)
    for image in (tmp_path / "test" / "kind0").iterdir():
        image.unlink()
    (tmp_path / "test" / "kind0").rmdir()
    assert data.load("folder", root=tmp_path, size=16, progress=False).test.targets.tolist() == [1] * 4 + [2] * 4


@pytest.mark.parametrize("name", ["val", "validation", "valid"])
def test_names_of_the_validation_folder(name: str, tmp_path: Path) -> None:
    for part, seed in (("train", 0), (name, 1), ("test", 2)):
        write_class_folders(tmp_path / part, 2, 4, seed=seed)
    loaded = data.load("folder", root=tmp_path, size=16, progress=False)
    assert [len(s) for s in (loaded.train, loaded.validation, loaded.test)] == [8, 8, 8]


def test_seeds_hold_out_other_images(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "two" / "train", 2, 30)
    write_class_folders(tmp_path / "two" / "test", 2, 3, seed=1)
    write_class_folders(tmp_path / "one", 2, 30)
    for seed, domain in enumerate("ab"):
        write_class_folders(tmp_path / "domains" / domain, 2, 30, seed=seed)
    for name, root, options in (("folder", "two", {}), ("folder", "one", {}), ("pacs", "domains", {"holdout": "a"})):
        sets = [
            as_set(data.load(name, root=tmp_path / root, size=16, seed=s, progress=False, **options).validation)
            for s in (0, 0, 1)
        ]
        assert sets[0] == sets[1] != sets[2], root


def test_domains_are_stretched_by_default(tmp_path: Path) -> None:
    for domain in "ab":
        write_class_folders(tmp_path / domain, 1, 10, size=(200, 100))
    loaded = data.load("pacs", root=tmp_path, holdout="a", progress=False)
    assert torch.equal(loaded.shifts["a"][0].images[0], read_image(tmp_path / "a" / "kind0" / "0.jpg", 224, "stretch"))


def test_one_in_a_hundred_is_too_many(tmp_path: Path) -> None:
    write_class_folders(tmp_path, 1, 100)
    (tmp_path / "kind0" / "7.jpg").write_bytes(b"no image")
    for loader in ("memory", "stream"):
        with pytest.raises(ValueError, match="readable, at least 99 % of them"):
            list(data.load("folder", root=tmp_path, size=16, loader=loader, progress=False).train.parts(100))


def test_images_of_ones_own_may_lie_in_domains(tmp_path: Path) -> None:
    for seed, name in enumerate(("A", "B", "C")):
        write_class_folders(tmp_path / name, 2, 10, seed=seed)
    config = load_config("domains", [f"data.root={tmp_path}", "data.holdout=C", "data.size=16"])
    loaded = load_dataset(config)
    assert (loaded.name, list(loaded.shifts), len(loaded.shifts["C"][0])) == ("domains", ["C"], 20)
    with pytest.raises(ValueError, match=r"left out for folder.*recipe `domains` does"):
        load_dataset(load_config("folder", [f"data.root={tmp_path}", "data.holdout=C"]))
