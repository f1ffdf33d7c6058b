"""Perturbed views in place of images, and the bands of other images that some of them have."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from shiftcal import data
from shiftcal.augment import Perturbation, augmix, swap_amplitude, swap_high_band
from shiftcal.data.epoch import MixedEpoch
from shiftcal.experiments.config import from_dict, load_config
from shiftcal.experiments.run import train
from shiftcal.experiments.setup import load_dataset, set_up, stage_of
from shiftcal.filtering import LowPassPolicy, dct_low_pass


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int = 12, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, 16, 16), generator=drawn(seed), dtype=torch.uint8)


def test_the_high_band_is_the_partners() -> None:
    images = pictures()
    found = swap_high_band(images, drawn(), qualities=[12])
    generator = drawn()
    torch.randint(1, (12,), generator=generator)
    partner = torch.randperm(12, generator=generator)
    low = dct_low_pass(images, 12).int()
    expected = (low + images[partner].int() - low[partner]).clamp(0, 255)
    assert torch.equal(found.int(), expected)
    with pytest.raises(ValueError, match=r"`qualities` should be in 1\.\.100, at least one"):
        swap_high_band(images, qualities=[])


def test_the_amplitude_is_the_partners_and_the_phase_its_own() -> None:
    """Against NumPy's transform in float64."""
    images = pictures()
    found = swap_amplitude(images, drawn()).numpy()
    partner = torch.randperm(12, generator=drawn()).numpy()
    spectrum = np.fft.fft2(images.numpy().astype(float))
    mixed = np.fft.ifft2(np.abs(spectrum[partner]) * np.exp(1j * np.angle(spectrum)))
    assert np.abs(mixed.imag).max() < 1e-9
    assert np.abs(found - mixed.real.clip(0, 255)).max() <= 0.51


def test_a_share_is_perturbed_and_the_rest_stays() -> None:
    images = pictures(50)
    found = Perturbation(augmix=0.4)(images, drawn())
    changed = (found != images).flatten(1).any(1)
    assert 15 <= int(changed.sum()) <= 20, "AugMix may leave an image nearly as it is"
    assert torch.equal(Perturbation()(images, drawn()), images)
    assert torch.equal(Perturbation(augmix=0.4)(images, drawn()), found), "a function of the generator"
    order = torch.randperm(50, generator=(generator := drawn()))[:20]
    view = augmix(images[order], generator, views=1, severity=3.0)[0].round()
    assert torch.equal(found[order].float(), view)


@pytest.mark.usefixtures("unchecked")
def test_each_image_draws_one_of_the_kinds() -> None:
    flat = torch.full((40, 3, 16, 16), 90, dtype=torch.uint8)
    flat[20:] = 30
    found = Perturbation(high_band=0.5, amplitude=0.5)(flat, drawn())
    changed = (found != flat).flatten(1).any(1)
    assert 2 < int(changed.sum()) <= 20, "flat images have no high band; their amplitude is their brightness"
    with pytest.raises(ValueError, match=r"`augmix` should be in \[0, 1\]"):
        Perturbation(1.5)
    with pytest.raises(ValueError, match="`shares` should be of a sum up to 1"):
        Perturbation(0.6, 0.3, 0.2)


def test_the_shares_are_those_asked_for() -> None:
    images = pictures(50)
    generator = drawn()
    found = Perturbation(amplitude=0.2, high_band=0.3)(images, generator)
    order = torch.randperm(50, generator=(again := drawn()))
    assert torch.equal(found[order[:10]], swap_amplitude(images[order[:10]], again))
    assert torch.equal(found[order[10:25]], swap_high_band(images[order[10:25]], again))
    assert torch.equal(found[order[25:]], images[order[25:]])


@pytest.fixture(scope="module")
def dataset() -> data.Dataset:
    return load_dataset(load_config("demo", ["data.train=64", "data.validation=32", "data.test=32"]))


def epoch(dataset: data.Dataset, number: int = 0, ratio: float = 0.0) -> MixedEpoch:
    perturbation = Perturbation(augmix=0.25, high_band=0.25)
    return MixedEpoch(
        dataset.train, policy=LowPassPolicy(ratio, (15,)), seed=0, epoch=number, perturbation=perturbation
    )


def test_an_epoch_perturbs_anew_and_leaves_originals_alone(dataset: data.Dataset) -> None:
    def seen(made: MixedEpoch) -> torch.Tensor:
        return torch.cat([batch.images for batch in made.batches(16)])

    plain = MixedEpoch(dataset.train, policy=LowPassPolicy(0.0), seed=0, epoch=0)
    first, second = epoch(dataset), epoch(dataset, 1)
    changed = (seen(first) != seen(plain)).flatten(1).any(1)
    assert 26 <= int(changed.sum()) <= 32
    assert torch.equal(seen(epoch(dataset)), seen(first))
    in_order = [next(made._fetch([torch.arange(64)])).images for made in (first, second)]
    assert not torch.equal(*in_order)
    originals = next(first.original_batches(64)).images
    stored = {image.numpy().tobytes() for image in dataset.train.images}
    assert all(image.numpy().tobytes() in stored for image in originals)


def test_filtered_images_are_filtered_last(dataset: data.Dataset) -> None:
    made, unfiltered = epoch(dataset, ratio=0.3), epoch(dataset)
    after, before = (next(e._fetch([torch.arange(64)])).images for e in (made, unfiltered))
    assert torch.equal(after[made.chosen], dct_low_pass(before[made.chosen], 15))
    kept = ~made.filtered
    assert torch.equal(after[kept], before[kept])


def test_a_config_of_the_version_before_is_read() -> None:
    tree = load_config("demo", ["method=fgr+view"]).to_dict()
    tree["perturb"] = {"share": None, "severity": 4.0, "qualities": [5]}
    assert from_dict(tree).perturb.severity == 4.0
    tree["perturb"]["share"] = 0.5
    with pytest.raises(ValueError, match=r"perturb.share"):
        from_dict(tree)


def test_rows_take_the_recipes_strengths(dataset: data.Dataset) -> None:
    words = ["method=fgr+views", "perturb.augmix=0.3", "perturb.severity=5", "perturb.qualities=[7]"]
    config = load_config("demo", words)
    task = set_up(config, dataset).task
    assert task.perturbation == Perturbation(0.3, 0.1, 0.1, 5.0, (7,))
    assert set_up(load_config("demo", ["method=fgr"]), dataset).task.perturbation is None
    assert config.row.weights == "average"


def test_the_last_epochs_may_be_without_views(dataset: data.Dataset) -> None:
    def perturbed(*words: str) -> list[bool]:
        task = set_up(load_config("demo", ["method=dfl+views", "train.epochs=10", *words]), dataset).task
        found = [task.epoch(number).perturbation for number in range(11)]  # one more for the statistics of batch-norm
        assert all(one in (None, task.perturbation) for one in found)
        return [one is not None for one in found]

    assert perturbed() == perturbed("perturb.until=1.0") == [True] * 11
    assert perturbed("perturb.until=0.8") == perturbed("perturb.until=0.77") == [True] * 8 + [False] * 3
    assert perturbed("perturb.until=0.01") == [True] + [False] * 10
    with pytest.raises(ValueError, match=r"perturb.until"):
        load_config("demo", ["perturb.until=0.0"])


def test_it_is_not_for_kept_features() -> None:
    with pytest.raises(ValueError, match="one without perturbed views, where the classifier alone is trained"):
        stage_of(load_config("demo", ["method=fgr+view"]))


def test_training_is_resumed_to_the_same_weights(dataset: data.Dataset, tmp_path: Path) -> None:
    sizes = ["data.train=64", "data.validation=32", "data.test=32", "train.epochs=3", "train.batch_size=16"]
    config = load_config("demo", ["method=fgr+views", "train.start=0.3", *sizes])
    checkpoints = tmp_path / "checkpoints"
    whole = train(config, dataset, checkpoints=checkpoints, progress=False)
    shutil.rmtree(checkpoints / "epoch-0003")
    for best in checkpoints.glob("best-epoch-0003"):
        shutil.rmtree(best)
    again = train(config, dataset, checkpoints=checkpoints, resume=True, progress=False)
    pairs = zip(whole.model.state_dict().values(), again.model.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
