import itertools

import pytest
import torch

from shiftcal import data, dct_low_pass
from shiftcal.data.epoch import MixedEpoch, seeded
from shiftcal.filtering import LowPassPolicy


@pytest.fixture(scope="module")
def split() -> data.MemorySplit:
    return data.load("shapes", train=200, validation=8, test=8).train


def mixed(split: data.MemorySplit, ratio: float = 0.1, seed: int = 0, epoch: int = 0) -> MixedEpoch:
    return MixedEpoch(split, policy=LowPassPolicy(ratio), seed=seed, epoch=epoch)


def in_order(epoch: MixedEpoch) -> torch.Tensor:
    """The images of an epoch in the order in which they are stored."""
    (index,) = epoch.indices(len(epoch.split))
    return next(epoch.batches(len(epoch.split))).images[index.argsort()]


def test_the_filtered_share_is_rho_and_each_has_a_quality_of_the_list(split: data.MemorySplit) -> None:
    epoch = mixed(split)
    assert int(epoch.filtered.sum()) == 20
    images = in_order(epoch)
    assert torch.equal(images[~epoch.filtered], split.images[~epoch.filtered])
    candidates = torch.stack([dct_low_pass(split.images, q) for q in (15, 18, 25)])
    found = (candidates == images).flatten(2).all(2)[:, epoch.filtered]
    assert found.any(0).all(), "every filtered image is one of the three"
    assert found.any(1).all(), "and all three qualities occur"


def test_each_epoch_draws_afresh_and_reproducibly(split: data.MemorySplit) -> None:
    assert torch.equal(mixed(split, epoch=1).filtered, mixed(split, epoch=1).filtered)
    assert not torch.equal(mixed(split, epoch=1).filtered, mixed(split, epoch=2).filtered)
    assert not torch.equal(mixed(split, seed=1).filtered, mixed(split, seed=2).filtered)


def test_an_epoch_reads_every_sample_once(split: data.MemorySplit) -> None:
    epoch = mixed(split)
    batches = list(epoch.batches(64))
    assert [len(b.targets) for b in batches] == [64, 64, 64, 8]
    assert torch.equal(torch.cat([b.targets for b in batches]).bincount(), split.targets.bincount())
    assert sum(int(b.filtered.sum()) for b in batches) == 20
    assert torch.equal(torch.cat(epoch.indices(64)).sort().values, torch.arange(200))


def test_every_epoch_has_its_own_order_and_the_constraint_another(split: data.MemorySplit) -> None:
    first, second = (next(mixed(split, epoch=e).batches(200)).targets for e in (0, 1))
    assert not torch.equal(first, second)
    plain = mixed(split, ratio=0.0)
    assert not torch.equal(next(plain.batches(64)).images, next(plain.original_batches(64)).images)


def test_the_order_does_not_depend_on_the_filter(split: data.MemorySplit) -> None:
    with_filter, without = (torch.cat([b.targets for b in mixed(split, ratio=r).batches(64)]) for r in (0.1, 0.0))
    assert torch.equal(with_filter, without)


def test_original_batches_hold_no_filtered_image_and_never_end(split: data.MemorySplit) -> None:
    epoch = mixed(split, ratio=0.5)
    batches = list(itertools.islice(epoch.original_batches(30), 10))
    assert all(len(b.targets) == 30 and not b.filtered.any() for b in batches)
    originals = {tuple(image.flatten().tolist()) for image in split.images[~epoch.filtered]}
    assert all(tuple(image.flatten().tolist()) in originals for b in batches for image in b.images)
    first, second = batches[0].targets, batches[3].targets  # two passes of 100, three batches each
    assert not torch.equal(first, second)


def test_a_batch_larger_than_the_set_is_cut(split: data.MemorySplit) -> None:
    assert len(next(mixed(split).original_batches(1000)).targets) == 180


def test_seeds_differ_by_purpose() -> None:
    draws = {
        float(torch.rand(1, generator=seeded(s, e, p, torch.device("cpu"))))
        for s in (0, 1)
        for e in (0, 1)
        for p in "ab"
    }
    assert len(draws) == 8


def test_bad_ratio(split: data.MemorySplit) -> None:
    with pytest.raises(ValueError, match=r"`ratio` should be in \[0, 1\)"):
        mixed(split, ratio=1.0)
