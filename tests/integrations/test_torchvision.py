import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from shiftcal import corrupt, dct_low_pass
from shiftcal.integrations.torchvision import AugMixView, Corrupt, RandomLowPass, SeededDataset

TRANSFORMS = [RandomLowPass(1.0), Corrupt("gaussian_noise", 5), AugMixView(severity=10.0)]


# Workers are forked: of a process with many threads, such as one that ran other tests, a fork may wait for ever.
FRESH = "SHIFTCAL_FRESH_PROCESS"
with_workers = pytest.mark.skipif(FRESH not in os.environ, reason="runs in a process of its own")


@pytest.mark.slow
def test_all_with_workers_in_a_process_of_its_own() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", __file__]
    environment = os.environ | {FRESH: "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout


def names(transform: object) -> str:
    return type(transform).__name__


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:0"])
def test_the_filter_is_that_of_the_package(natural_images: torch.Tensor, subsampling: str) -> None:
    images = natural_images[:40]
    filtered, mask = RandomLowPass(0.5, [18], subsampling, return_mask=True)(images)
    assert 0 < int(mask.sum()) < 40
    assert torch.equal(filtered[mask], dct_low_pass(images[mask], 18, subsampling=subsampling))
    assert torch.equal(filtered[~mask], images[~mask])


def test_about_the_share_is_filtered_and_all_qualities_occur(natural_images: torch.Tensor) -> None:
    torch.manual_seed(0)
    filtered, mask = RandomLowPass(0.5, [5, 95], return_mask=True)(natural_images)
    assert 70 < int(mask.sum()) < 130  # of 200
    low = torch.stack([dct_low_pass(natural_images, 5), dct_low_pass(natural_images, 95)])
    which = (low[:, mask] == filtered[mask]).flatten(2).all(2)
    assert bool((which.sum(0) == 1).all())
    assert 20 < int(which[0].sum()) < int(mask.sum()) - 20


@pytest.mark.parametrize("transform", TRANSFORMS, ids=names)
def test_all_kinds_of_images_become_the_same(transform: torch.nn.Module, natural_images: torch.Tensor) -> None:
    image = natural_images[3]
    found = []
    for kind in (image, image[None], tv_tensors.Image(image), Image.fromarray(image.permute(1, 2, 0).numpy())):
        torch.manual_seed(5)
        changed = transform(kind)
        assert type(changed) is type(kind) or isinstance(changed, type(kind))
        if isinstance(changed, Image.Image):
            changed = torch.from_numpy(np.array(changed)).permute(2, 0, 1)
        found.append(torch.Tensor(changed.float()).view(3, 32, 32))
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert not torch.equal(found[0], image.float())
    assert torch.equal(image, natural_images[3]), "the input is left as it is"


@pytest.mark.parametrize("transform", TRANSFORMS, ids=names)
def test_the_rest_of_a_sample_is_left_as_it_is(transform: torch.nn.Module, natural_images: torch.Tensor) -> None:
    image, target = natural_images[0], torch.tensor([4, 5])
    changed, same = transform(image, target)
    assert torch.equal(same, target)
    assert not torch.equal(changed, image)
    explicit = transform({"number": target, "image": tv_tensors.Image(image), "mask": tv_tensors.Mask(image)})
    assert torch.equal(explicit["number"], target)
    assert torch.equal(explicit["mask"], tv_tensors.Mask(image))
    assert not torch.equal(explicit["image"], image)


def test_the_mask_goes_through_a_pipeline(natural_images: torch.Tensor) -> None:
    steps = [v2.RandomCrop(28), RandomLowPass(1.0, return_mask=True), v2.ToDtype(torch.float32, scale=True)]
    image, target, filtered = v2.Compose([*steps, v2.Normalize([0.5] * 3, [0.25] * 3)])(natural_images[0], 3)
    assert image.shape == (3, 28, 28)
    assert float(image.min()) < 0
    assert target == 3
    assert filtered.dtype == torch.bool
    assert bool(filtered)
    both = RandomLowPass(0.0, return_mask=True)({"image": natural_images[0]})
    assert sorted(both) == ["filtered", "image"]
    assert not both["filtered"]


def sample_set(images: torch.Tensor, transform: object, seed: int) -> SeededDataset:
    return SeededDataset(TensorDataset(images, torch.arange(len(images))), transform, seed)


def gone_through(dataset: SeededDataset, workers: int) -> torch.Tensor:
    loader = DataLoader(dataset, batch_size=8, num_workers=workers)
    return torch.cat([images for images, *_ in loader])


@with_workers
@pytest.mark.parametrize("transform", [*TRANSFORMS, v2.RandomResizedCrop(32)], ids=names)
def test_a_sample_depends_on_seed_epoch_and_index_alone(
    transform: torch.nn.Module, natural_images: torch.Tensor
) -> None:
    images = natural_images[:1].expand(24, 3, 32, 32)  # the same image, so that differences are those of randomness
    dataset = sample_set(images, transform, seed=1)
    torch.manual_seed(0)
    alone = gone_through(dataset, workers=0)
    torch.manual_seed(1)
    assert torch.equal(alone, gone_through(dataset, workers=2))
    if not isinstance(transform, RandomLowPass):  # of which there are only three kinds
        assert len(alone.flatten(1).unique(dim=0)) == 24
    assert not torch.equal(alone, gone_through(sample_set(images, transform, seed=2), workers=0))
    dataset.set_epoch(1)
    assert not torch.equal(alone, gone_through(dataset, workers=0))
    state = torch.get_rng_state()
    _ = dataset[3]
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left as it was"


@with_workers
def test_persistent_workers_see_the_epoch(natural_images: torch.Tensor) -> None:
    dataset = sample_set(natural_images[:8], AugMixView(), seed=0)
    loader = DataLoader(dataset, batch_size=8, num_workers=1, persistent_workers=True)
    found = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        found += [images for images, _ in loader]
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


@with_workers
def test_corrupted_samples_are_those_of_the_package(natural_images: torch.Tensor) -> None:
    images = natural_images[:12]
    found = gone_through(sample_set(images, Corrupt("gaussian_noise", 4, "imagenet", seed=3), seed=9), workers=2)
    assert torch.equal(found, corrupt(images, "gaussian_noise", 4, seed=3, constants="imagenet"))
    batch = Corrupt("gaussian_noise", 4, seed=3)(images)
    assert torch.equal(batch, corrupt(images, "gaussian_noise", 4, seed=3))


class Stream(IterableDataset):
    """The same image again and again, in every worker."""

    def __init__(self, image: torch.Tensor, transform: torch.nn.Module) -> None:
        self.image, self.transform = image, transform

    def __iter__(self):
        return (self.transform(self.image) for _ in range(4))


@with_workers
def test_workers_do_not_draw_alike(natural_images: torch.Tensor) -> None:
    """Also without a SeededDataset, where torch seeds each worker."""
    stream = Stream(natural_images[0], Corrupt("gaussian_noise", 3))
    images = torch.cat(list(DataLoader(stream, batch_size=4, num_workers=2)))
    assert len(images.flatten(1).unique(dim=0)) == 8


@pytest.mark.parametrize("transform", TRANSFORMS, ids=names)
def test_normalised_images_are_refused(transform: torch.nn.Module, natural_images: torch.Tensor) -> None:
    steps = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3), transform])
    with pytest.raises(ValueError, match=r"`image` should be stored, uint8: put this transform before .*float32 \[3"):
        steps(natural_images[0])
    with pytest.raises(ValueError, match=r"should be of shape \[3, H, W\] or \[N, 3, H, W\]"):
        transform(natural_images[0, :1])
    with pytest.raises(ValueError, match=r"RGB: image.convert\('RGB'\). Found .* mode L"):
        transform(Image.new("L", (32, 32)))


@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_told_when_the_transform_is_made(natural_images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"`share` should be in \[0, 1\]"):
        RandomLowPass(1.5)
    with pytest.raises(ValueError, match=r"`qualities` should be integers in 1..100"):
        RandomLowPass(qualities=[0])
    with pytest.raises(ValueError, match="`subsampling` should be"):
        RandomLowPass(subsampling="4:1:1")
    with pytest.raises(ValueError, match="Did you mean 'gaussian_noise'"):
        Corrupt("gausian_noise")
    with pytest.raises(ValueError, match=r"`severity` should be in 0.1..10"):
        AugMixView(severity=11)
    with pytest.raises(ValueError, match="`seed` should be"):
        SeededDataset([], AugMixView(), seed=-1)
    pair = (tv_tensors.Image(natural_images[0]), tv_tensors.Image(natural_images[1]))
    with pytest.raises(ValueError, match=r"a sample with one image, where `return_mask` is set. Found .* 2 images"):
        RandomLowPass(return_mask=True)(*pair)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=names)
def test_samples_without_an_image_are_refused(transform: torch.nn.Module, natural_images: torch.Tensor) -> None:
    """An array would come out as it went in, unfiltered."""
    with pytest.raises(ValueError, match=r"`inputs` should be a sample with an image.*ndarray, int"):
        transform(natural_images[0].permute(1, 2, 0).numpy(), 3)
