"""What can be known before training is checked before training: names, options, and the data."""

from __future__ import annotations

from collections.abc import Iterable

from shiftcal import data, models
from shiftcal._errors import DataError, unknown, wrong
from shiftcal.data.dataset import Dataset
from shiftcal.experiments.config import Config
from shiftcal.experiments.environment import resolve_device
from shiftcal.experiments.setup import shift_grid, stage_of
from shiftcal.shifts.corruptions import CONSTANTS, CORRUPTIONS, EXTRA_CORRUPTIONS


def check_config(config: Config) -> None:
    """Raise if a config names what does not exist or what this machine does not have."""
    named = (
        ("evaluation.corruptions", config.evaluation.corruptions, ("all", "extra", *CORRUPTIONS, *EXTRA_CORRUPTIONS)),
        ("evaluation.constants", [config.evaluation.constants], CONSTANTS),
    )
    for key, names, known in named:
        for name in names:
            if name not in known:
                raise unknown(key, name, known)
    data.find(config.data.name)
    models.find(config.train.model)
    if config.finetuned_from:
        stage_of(config)
    resolve_device(config.device)


def check_data(config: Config, dataset: Dataset) -> None:
    """Raise if a data set cannot be trained on, or evaluated on, as a config says."""
    check_training_data(config, dataset)
    shift_grid(config).check(dataset)


def check_training_data(config: Config, dataset: Dataset) -> None:
    """Raise if a data set cannot be trained on as a config says."""
    if len(dataset.classes) < 2:
        raise DataError("classes", "at least two", f"{len(dataset.classes)} ({', '.join(dataset.classes)})")
    for name in ("train", "validation"):
        targets = getattr(dataset, name).targets
        if len(targets) == 0 or bool((targets == targets[0]).all()):
            found = f"{len(targets)} of one" if len(targets) else "none"
            raise DataError(name, "images of at least two classes", found)
    count, ratio = len(dataset.train), config.filter.ratio
    if config.row.low_pass is not None and round(ratio * count) == count:
        raise wrong("filter.ratio", f"small enough to leave some of {count} images unfiltered", ratio)


# Keys of the whole training that do not count where the classifier alone is trained: those that the section `finetune`
# has too, and those that are fixed.
_FINETUNE_TWINS = {
    f"train.{key}": f"finetune.{key}"
    for key in (
        *("epochs", "batch_size", "learning_rate", "weight_decay"),
        *("schedule", "milestones", "clip_norm"),
    )
}
_FINETUNE_TWINS["gamma.fgr"] = "finetune.gamma"
_FINETUNE_FIXED = (
    *("accumulate", "rectify_per", "optimizer", "momentum", "nesterov", "warmup"),
    *("loss_reduction", "start"),
)


def check_finetune_overrides(overrides: Iterable[str]) -> None:
    """Raise on overrides that would do nothing where the classifier alone is trained."""
    fixed = stage_of(Config()).train
    for key in (override.partition("=")[0].strip() for override in overrides):
        if key in _FINETUNE_TWINS:
            raise wrong("set", f"{_FINETUNE_TWINS[key]}, which counts where the classifier alone is trained", key)
        name = key.removeprefix("train.")
        if key.startswith("train.") and name in _FINETUNE_FIXED:
            value = getattr(fixed, name)
            raise wrong("set", f"without {key}, which is {value} where the classifier alone is trained", key)
