"""What a run is about to do, in a few lines, before it takes its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shiftcal import _distributed, data
from shiftcal._machine import cores
from shiftcal.data.dataset import Dataset
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import FileSplit
from shiftcal.experiments.config import Config
from shiftcal.experiments.environment import describe_device
from shiftcal.experiments.setup import Setup


def summary(config: Config, dataset: Dataset, setup: Setup) -> Iterator[str]:
    """Tell images, classes, model, preprocessing, device and length of a run."""
    splits = (("training", dataset.train), ("validation", dataset.validation), ("test", dataset.test))
    counts = ", ".join(f"{len(split):,} {name}" for name, split in splits)
    kind = "decoded while training" if isinstance(dataset.train, FileSplit) else "in memory"
    yield f"{config.method}  {dataset.name}: {counts} images of {len(dataset.classes)} classes, {kind}"
    parameters = sum(p.numel() for p in setup.state.model.parameters())
    yield (
        f"{config.method}  {config.train.model}: {parameters / 1e6:.1f} M parameters, "
        f"input {_input(setup.preprocess, dataset)}, "
        f"{_device(setup)}; {config.train.epochs} epochs of {setup.task.steps_per_epoch:,} steps"
    )


def preprocessing_in_words(config: Config, dataset: Dataset, preprocess: Preprocessing) -> str:
    """Tell how files become the input of a network: size, fit, mean and deviation."""
    taken = data.options_of(config.data.name)
    size, fit = (
        getattr(config.data, name) or (taken[name].default if name in taken else None) for name in ("size", "fit")
    )
    stored = f"files become {size} × {size} (data.fit={fit})" if size and fit else "images as they are stored"
    return f"{stored}; input {_input(preprocess, dataset)}, std ({_listed(preprocess.std)})"


def _input(preprocess: Preprocessing, dataset: Dataset) -> str:
    height, width = (preprocess.input_size,) * 2 if preprocess.input_size else dataset.train.shape[1:]
    return f"{height} × {width}, mean ({_listed(preprocess.mean)})"


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def _device(setup: Setup) -> str:
    told = describe_device(setup.state.device)
    ranks = f", {_distributed.world_size()} ranks" if _distributed.is_distributed() else ""
    return (f"CPU, {cores()} cores" if told["type"] == "cpu" else str(told["name"])) + ranks
