"""Images from files: how they become square."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from shiftcal.data import Crop, FileSplit
from shiftcal.data.files.decode import Decoder
from shiftcal.data.files.images import read_image, read_images
from shiftcal.data.sources.folders import folder

SIZES = [(500, 332), (333, 500), (37, 61), (248, 248), (224, 224), (300, 60), (51, 50)]
KINDS = ("bilinear", "bicubic", "nearest", "lanczos")


def save(path: Path, size: tuple[int, int], seed: int = 0) -> Path:
    array = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("resize", "side"), [(256, 224), (248, 224), (235, 224), (64, 64), (65, 32)])
def test_a_crop_is_torchvisions(size: tuple[int, int], resize: int, side: int, tmp_path: Path) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    path = save(tmp_path / "a.png", size)
    for kind in KINDS:
        mode = transforms.InterpolationMode(kind)
        whole = transforms.Compose([transforms.Resize(resize, mode), transforms.CenterCrop(side)])
        expected = torch.from_numpy(np.array(whole(Image.open(path)))).permute(2, 0, 1)
        assert torch.equal(read_image(path, side, Crop(resize, kind)), expected), kind


def test_a_crop_is_what_pillow_computes(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", (333, 500))
    whole = Image.open(path).resize((248, 372), Image.Resampling.BICUBIC)
    cut = np.asarray(whole)[74 : 74 + 224, 12 : 12 + 224]
    assert np.array_equal(read_image(path, 224, Crop(248, "bicubic")).permute(1, 2, 0).numpy(), cut)


def test_every_way_to_read_takes_a_crop(tmp_path: Path) -> None:
    files = [save(tmp_path / "tree" / f"kind{k}" / f"{i}.png", (40 + i, 30), k) for k in range(2) for i in range(10)]
    fit = Crop(26, "bicubic")
    expected = torch.stack([read_image(path, 24, fit) for path in files])
    assert not torch.equal(expected, torch.stack([read_image(path, 24) for path in files]))
    assert torch.equal(read_images(files, size=24, fit=fit, progress=False)[0], expected)
    batches = Decoder(files, 24, fit, workers=1).batches([torch.arange(20)])
    assert torch.equal(next(iter(batches))[1], expected)
    split = FileSplit(tuple(files), torch.zeros(20, dtype=torch.int64), 24, fit, workers=0)
    assert torch.equal(torch.cat([part.images for _, part in split.parts(7)]), expected)
    memory, stream = (
        folder(tmp_path / "tree", size=24, fit=fit, loader=loader, progress=False) for loader in ("memory", "stream")
    )
    assert torch.equal(memory.test.images, next(stream.test.parts(9))[1].images)
    assert {tuple(image.flatten().tolist()) for image in memory.test.images} <= {
        tuple(image.flatten().tolist()) for image in expected
    }


def test_crops_that_cannot_be(tmp_path: Path, unchecked: None) -> None:
    path = save(tmp_path / "tree" / "a" / "a.png", (40, 30))
    with pytest.raises(ValueError, match=r"`fit` should be one that resizes to at least the size, 32. .*resize=31"):
        read_image(path, 32, Crop(31))
    with pytest.raises(ValueError, match="`size` should be given with fit = Crop"):
        read_image(path, fit=Crop(31))
    with pytest.raises(ValueError, match="resizes to at least the size, 32"):  # before anything is decoded
        folder(tmp_path / "tree", size=32, fit=Crop(31), loader="stream")
    with pytest.raises(ValueError, match="`resize` should be an integer of at least 1"):
        Crop(0)
    with pytest.raises(ValueError, match="Did you mean 'bicubic'"):
        Crop(8, "cubic")
    with pytest.raises(ValueError, match="`fit` should be 'crop', 'stretch' or a `Crop`"):
        read_image(path, 32, "croped")


def test_brightness_in_floating_point_is_not_black(tmp_path: Path) -> None:
    levels = torch.linspace(0, 1, 64).view(8, 8)
    for k, values in enumerate((levels, 255 * levels)):
        Image.fromarray(values.numpy(), mode="F").save(tmp_path / f"{k}.tif")
    unit, grey = (read_image(tmp_path / f"{k}.tif") for k in range(2))
    assert torch.equal(unit, grey)
    assert int(unit.max()) == 255
