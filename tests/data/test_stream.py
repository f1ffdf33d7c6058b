"""The streaming loader against the one in memory."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from stand_ins import write_class_folders

from shiftcal import data
from shiftcal._errors import WorkerError
from shiftcal.auditing.grid import ShiftGrid, evaluate
from shiftcal.augment import crop_flip
from shiftcal.data.epoch import MixedEpoch, seeded
from shiftcal.data.files import read
from shiftcal.data.files.listing import find_images
from shiftcal.data.files.read import read_split
from shiftcal.data.split import FileSplit, MemorySplit, first_of, join
from shiftcal.experiments.config import load_config
from shiftcal.experiments.run import train
from shiftcal.experiments.setup import load_dataset
from shiftcal.filtering import LowPassPolicy, dct_low_pass
from shiftcal.models import build


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_class_folders(folder, 3, 30)
    return folder


def both(root: Path, **options: object) -> tuple[data.Dataset, data.Dataset]:
    memory, stream = (
        data.load("folder", root=root, size=16, loader=loader, progress=False, **options)
        for loader in ("memory", "stream")
    )
    return memory, stream


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_memory(root: Path, workers: int) -> None:
    memory, stream = both(root)
    stream = stream.with_workers(workers)
    assert isinstance(memory.train, MemorySplit)
    assert isinstance(stream.train, FileSplit)
    assert len(memory.train) == len(stream.train) == 72
    options = {"policy": LowPassPolicy(0.25, (15, 40)), "seed": 3, "epoch": 1}
    a, b = MixedEpoch(memory.train, **options), MixedEpoch(stream.train, **options)
    for pairs in (
        zip(a.batches(20), b.batches(20), strict=True),
        zip(islice(a.original_batches(20), 6), islice(b.original_batches(20), 6), strict=True),
    ):
        for one, other in pairs:
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.targets, other.targets)
            assert torch.equal(one.filtered, other.filtered)
    assert a.filtered.sum() == 18


def test_files_that_are_filtered_after_crop_and_flip(root: Path) -> None:
    memory, stream = both(root)
    policy = LowPassPolicy(0.25, (15,), before=crop_flip)
    epoch = MixedEpoch(stream.train, policy=policy, seed=3, epoch=1)
    for index, batch in zip(epoch.indices(20), epoch.batches(20), strict=True):
        stored, chosen = memory.train.images[index], batch.filtered
        assert torch.equal(batch.augmented, chosen)
        generator = seeded(3, 1, f"augment before filter {int(index[0])}", torch.device("cpu"))
        assert torch.equal(batch.images[chosen], dct_low_pass(crop_flip(stored[chosen], generator), 15))
        assert torch.equal(batch.images[~chosen], stored[~chosen])


def test_parts_are_those_of_memory_and_name_their_indices(root: Path) -> None:
    memory, stream = both(root)
    for (i, one), (j, other) in zip(memory.test.parts(4), stream.test.parts(4), strict=True):
        assert torch.equal(i, j)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.targets, other.targets)
    assert torch.equal(torch.cat([i for i, _ in stream.test.parts(4)]), torch.arange(9))


@pytest.mark.slow
def test_a_streamed_set_trains_and_evaluates_as_one_in_memory(root: Path) -> None:
    words = [f"data.root={root}", "data.name=folder", "data.size=16", "train.epochs=2", "train.start=0.5"]
    words += ["filter.ratio=0.2", "data.workers=1"]
    results = []
    for loader in ("memory", "stream"):
        config = load_config("demo", [*words, f"data.loader={loader}"])
        dataset = load_dataset(config)
        run = train(config, dataset, progress=False)
        evaluation = evaluate(run.model, dataset, corruptions=["gaussian_noise"], batch_size=4, progress=False)
        results.append((run.history[-1]["loss"], evaluation.clean, evaluation.shifts))
    assert results[0] == results[1]


def test_the_size_decides_and_the_recipe_overrules(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = sorted(root.rglob("*.jpg"))
    targets = [0] * len(tree)
    bytes_needed = len(tree) * 3 * 16 * 16
    monkeypatch.setattr(read, "memory_limit", lambda: bytes_needed)
    assert isinstance(read_split(tree, targets, size=16, progress=False), MemorySplit)
    monkeypatch.setattr(read, "memory_limit", lambda: bytes_needed - 1)
    assert isinstance(read_split(tree, targets, size=16, progress=False), FileSplit)
    assert isinstance(read_split(tree, targets, size=16, loader="memory", progress=False), MemorySplit)
    # Without a size, the first image's header tells: 40 × 30.
    assert isinstance(read_split(tree, targets, progress=False), FileSplit)
    monkeypatch.setattr(read, "memory_limit", lambda: len(tree) * 3 * 40 * 30)
    assert isinstance(read_split(tree, targets, progress=False), MemorySplit)


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_loader(root: Path) -> None:
    with pytest.raises(ValueError, match=r"`data.loader` should be one of auto, memory, stream. .*'disk'"):
        data.load("folder", root=root, loader="disk")


def test_an_eighth_of_the_memory_is_the_limit() -> None:
    assert read.memory_limit() == read.host_memory() // 8 or torch.cuda.is_available()
    assert read.host_memory() > 10**9


def test_domains_are_streamed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, domain in enumerate(["a", "b", "c"]):
        write_class_folders(tmp_path / domain, 2, 10, seed=seed)
    one_domain = 20 * 3 * 16 * 16
    monkeypatch.setattr(read, "memory_limit", lambda: one_domain)
    loaded = data.load("pacs", root=tmp_path, holdout="a", size=16, progress=False)
    assert isinstance(loaded.train, FileSplit), "each fits, both together do not"
    assert len(loaded.train) == 32
    assert isinstance(loaded.shifts["a"][0], MemorySplit), "it is a set of its own, and fits"
    monkeypatch.setattr(read, "memory_limit", lambda: 2 * one_domain)
    assert isinstance(data.load("pacs", root=tmp_path, holdout="a", size=16, progress=False).train, MemorySplit)


def test_sets_are_joined_in_order(root: Path) -> None:
    memory, stream = both(root)
    for loaded in (memory, stream):
        joined = join([loaded.validation, loaded.test])
        parts = torch.cat([part.images for _, part in joined.parts(50)])
        expected = torch.cat([part.images for split in (memory.validation, memory.test) for _, part in split.parts(50)])
        assert torch.equal(parts, expected)
        assert len(joined) == 18
    with pytest.raises(ValueError, match=r"`splits` should be all in memory, or none"):
        join([memory.train, stream.train])


def test_unreadable_files_are_named_once_and_left_out(tmp_path: Path) -> None:
    write_class_folders(tmp_path, 1, 120)
    files = sorted((tmp_path / "kind0").iterdir())
    files[5].write_bytes(b"no image")
    split = FileSplit(tuple(files), torch.zeros(120, dtype=torch.int64), 16, workers=1)
    with pytest.warns(UserWarning, match=f"left out: .*{files[5].name}") as caught:
        parts = list(split.parts(50)) + list(split.parts(50))
    assert len(caught) == 1
    assert sum(len(part) for _, part in parts) == 2 * 119
    index = torch.cat([index for index, _ in parts])
    assert 5 not in index.tolist()
    files[6].write_bytes(b"nor this")
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="readable, at least 99 %"):
        list(FileSplit(tuple(files), torch.zeros(120, dtype=torch.int64), 16, workers=0).parts(50))


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    for k, size in enumerate([(20, 20), (24, 20)]):
        Image.new("RGB", size).save(tmp_path / f"{k}.png")
    split = FileSplit(tuple(sorted(tmp_path.iterdir())), torch.zeros(2, dtype=torch.int64), workers=0)
    with pytest.raises(ValueError, match=r"`images` should be of one size .data.size brings them to one"):
        list(split.parts(2))


def test_workers_of_a_recipe(root: Path) -> None:
    words = [f"data.root={root}", "data.name=folder", "data.size=16", "data.loader=stream", "data.workers=3"]
    loaded = load_dataset(load_config("demo", words))
    assert loaded.train.decoder.workers == loaded.test.decoder.workers == 3
    assert load_dataset(load_config("demo", words[:-1])).train.decoder.workers is None
    with pytest.raises(ValueError, match=r"`data.workers` should be at least 0"):
        load_config("demo", ["data.workers=-1"])


def test_models_may_take_larger_images_than_are_stored() -> None:
    loaded = data.load("shapes", train=16, validation=8, test=8)
    model = build("small", 8)
    config = load_config("demo", ["train.input_size=48", "train.epochs=1", "method=fgr", "filter.ratio=0.2"])
    seen = []
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-2:]))
    evaluate(model, loaded, preprocess=train(config, loaded, progress=False).preprocess, progress=False)
    assert set(seen) == {(48, 48)}


def test_a_jobs_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(read, "_LIMITS", (limit,))
    whole = read.host_memory()
    for text, expected in (("1000000000\n", 10**9), ("max\n", whole), (str(2**63), whole)):
        limit.write_text(text)
        assert read.host_memory() == expected


def test_resizing_is_pillows() -> None:
    image = torch.randint(0, 256, (1, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    pillow = Image.fromarray(image[0].permute(1, 2, 0).numpy())
    for size in (16, 56):
        expected = torch.from_numpy(np.array(pillow.resize((size, size), Image.Resampling.BILINEAR))).permute(2, 0, 1)
        levels = data.Preprocessing((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), input_size=size)(image)[0] * 255
        assert (levels - expected.float()).abs().max() <= 1


def test_a_worker_without_shared_memory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would hand the batch over in a thread of its own, whose failure the main process never learns of."""

    def full(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)"
        )

    write_class_folders(tmp_path, 1, 4)
    monkeypatch.setattr(torch.Tensor, "share_memory_", full)  # workers are forked
    split = FileSplit(tuple((tmp_path / "kind0").iterdir()), torch.zeros(4, dtype=torch.int64), 16, workers=1)
    with pytest.raises(WorkerError, match=r"unable to allocate shared memory.*data\.workers"):
        list(split.parts(4))


def test_an_error_in_a_worker_is_told_without_advice_on_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a bug\nof two lines")

    write_class_folders(tmp_path, 1, 4)
    monkeypatch.setattr(torch.Tensor, "share_memory_", broken)
    split = FileSplit(tuple((tmp_path / "kind0").iterdir()), torch.zeros(4, dtype=torch.int64), 16, workers=1)
    with pytest.raises(WorkerError, match=r"ended: RuntimeError: a bug\.$"):
        list(split.parts(4))


def test_one_damaged_file_of_many_is_in_nobodys_way_wherever_it_lies(tmp_path: Path) -> None:
    """The first file is looked at before any other, for its size and for a model's logits."""
    write_class_folders(tmp_path, 2, 101)
    first = sorted((tmp_path / "kind0").iterdir())[0]
    first.write_bytes(b"no image")
    with pytest.warns(UserWarning, match="left out"):
        loaded = read_split(*listed(tmp_path), progress=False)
    assert isinstance(loaded, MemorySplit)
    split = read_split(*listed(tmp_path), loader="stream", progress=False)
    assert split.shape == (3, 30, 40)
    assert len(first_of(split, 8)) == 8
    ShiftGrid(("fog",)).check_images(split)
    for file in split.files:
        file.write_bytes(b"no image")
    with pytest.raises(ValueError, match="at least one that can be read"):
        first_of(FileSplit(split.files, split.targets, 16), 8)


def listed(root: Path) -> tuple[tuple[Path, ...], tuple[int, ...]]:
    tree = find_images(root)
    return tree.files, tree.targets
