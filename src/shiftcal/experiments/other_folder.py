"""A finished run on a folder of images that is not its own data: one test set, and a record beside the run's."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path

from shiftcal import data
from shiftcal._io import is_free
from shiftcal.data.dataset import Dataset
from shiftcal.data.sources.folders import as_test_set
from shiftcal.experiments.checks import check_config
from shiftcal.experiments.config import Config, config_of_run
from shiftcal.experiments.environment import environment
from shiftcal.experiments.finished import changed_config, kept_model, open_run
from shiftcal.experiments.origin import matched
from shiftcal.experiments.setup import evaluate_with, preprocessing_of, reading_of, shift_grid
from shiftcal.records import RECORD, DataSeen, Environment, RunRecord, read_record, write_record


def is_own_data(out: Path, root: Path, *, trust: bool = False) -> bool:
    """Tell whether a folder is the data of a run: where the run found it, or the place of a set that has a name."""
    own = config_of_run(out, trust=trust).data
    return own.name not in data.BY_PATH or Path(own.root or "").resolve() == root.resolve()


def measure_folder(
    out: Path, root: Path, *, overrides: Sequence[str] = (), trust: bool = False, progress: bool = True
) -> tuple[RunRecord, Path]:
    """Measure a run on a folder as one test set, and write a record into `eval-<folder name>` of the run's directory.

    Temperatures are those of the run's record: nothing is fitted on the folder, and the run's record stays as it is.

    Args:
        out: Directory of the run.
        root: A tree of class folders, all of which is measured, or a folder with `test/`.
        overrides: Changes of keys of the evaluation, such as "evaluation.bins=20".
        trust: Import and call functions of other packages that the run's config names.
        progress: Show progress.

    Returns:
        The record, and the directory that it was written into.
    """
    root = root.resolve()
    record, digest, _ = open_run(out, trust=trust)
    config = _without_corrupted_sets(changed_config(out, root, overrides), overrides)
    check_config(config)
    dataset = matched(config, _loaded(config, root, progress), out)
    shift_grid(config).check(dataset)
    model = kept_model(out, config, dataset)
    clock = time.perf_counter()
    preprocess = preprocessing_of(config, dataset, model)
    evaluation = evaluate_with(config, model, dataset, preprocess, progress=progress, earlier=record.evaluation)
    made = record.model_copy(
        update={
            "config": config.to_dict(),
            "data": DataSeen(
                name=root.name,
                classes=dataset.classes,
                counts={"test": evaluation.clean.n or 0},
                preprocessing=preprocess.described(),
            ),
            "weights": record.weights.model_copy(update={"sha256": digest}),
            "evaluation": evaluation.model_copy(update={"epoch": record.weights.epoch}),
            "also": {},
            "before": None,
            "seconds": record.seconds | {"evaluate": time.perf_counter() - clock},
            "evaluated_again": Environment.model_validate(environment()),
        }
    )
    place = _place_for(made, out, root)
    place.mkdir(exist_ok=True)
    write_record(place / RECORD, made)
    return made, place


def _without_corrupted_sets(config: Config, overrides: Sequence[str]) -> Config:
    """Leave out the corrupted sets on disk that the run read: they are of its own test images."""
    if any(override.partition("=")[0].strip() == "evaluation.corrupted" for override in overrides):
        return config
    return config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"corrupted": None})})


def _loaded(config: Config, root: Path, progress: bool) -> Dataset:
    own = config.data
    given = reading_of(own) | ({} if own.loader is None else {"loader": own.loader})
    dataset = as_test_set(root, progress=progress, **given)
    return dataset if own.workers is None else dataset.with_workers(own.workers)


def _place_for(record: RunRecord, out: Path, root: Path) -> Path:
    """Find a directory that is free, or holds this very record."""
    name = f"eval-{root.name}"
    places = (out / (name if number == 1 else f"{name}-{number}") for number in itertools.count(1))
    return next(place for place in places if is_free(place) or _holds(place, record))


def _holds(place: Path, record: RunRecord) -> bool:
    try:
        there = read_record(place / RECORD)
    except (OSError, ValueError):
        return False
    return all(getattr(there, name) == getattr(record, name) for name in ("config", "data", "weights", "evaluation"))
