"""Finished runs: whether weights, config and record belong together, and evaluating them again."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import safetensors
from torch import nn

from shiftcal import models
from shiftcal._errors import RunDirectoryError, wrong
from shiftcal._io import first_difference, sha256_of, write_json
from shiftcal.auditing.grid import ShiftGrid
from shiftcal.data.dataset import Dataset
from shiftcal.experiments.checks import check_config, check_data
from shiftcal.experiments.config import Config, config_of_run, from_dict, stored_config
from shiftcal.experiments.directory import RESUMABLE_KEYS, held
from shiftcal.experiments.environment import environment, resolve_device
from shiftcal.experiments.origin import matched
from shiftcal.experiments.setup import evaluate_with, load_dataset, preprocessing_of, shift_grid
from shiftcal.records import (
    CONFIG,
    RECORD,
    WEIGHTS,
    Environment,
    Evaluation,
    RunRecord,
    read_record,
    write_record,
)

_AGAIN = "(the command that made the run makes it again, with --resume)"
_APART = 0.02  # what the accuracy of the same weights may change between machines


def finished(out: Path) -> RunRecord | None:
    """Return the record of a finished run; None, with a warning, if it or the weights were damaged or removed."""
    try:
        record = read_record(out / RECORD)
    except ValueError:
        damage = f"{out / RECORD} is damaged"
    else:
        try:
            check_weights(out, record)
        except RunDirectoryError as error:
            damage = str(error.found)
        else:
            return record
    warnings.warn(f"{damage}. It is made again from the last checkpoint.", stacklevel=3)
    return None


def check_finished(out: Path) -> None:
    """Raise unless a directory holds a finished run."""
    if not (out / RECORD).is_file() or not (out / WEIGHTS).is_file():
        raise RunDirectoryError("directory", "a finished run (`shiftcal train … --resume` finishes one)", str(out))


def check_weights(out: Path, record: RunRecord) -> str:
    """Raise unless a run's weights are those that its record tells of, and return their SHA-256."""
    path = out / WEIGHTS
    try:
        with safetensors.safe_open(path, "pt"):
            pass
    except (OSError, safetensors.SafetensorError):
        raise RunDirectoryError("weights", f"whole {_AGAIN}", f"{path} is missing or damaged") from None
    digest = sha256_of(path)
    if record.weights.sha256 not in (None, digest):
        found = f"{path} is not what {RECORD} tells of: it was damaged or replaced"
        raise RunDirectoryError("weights", f"those of the run {_AGAIN}", found)
    return digest


def check_config_of(out: Path, stored: Config, record: RunRecord) -> None:
    """Raise unless a run's config.json is that of its record, but for the evaluation: the record tells of the last."""
    theirs = stored_config(record.config, out / RECORD, stored).to_dict()
    if differing := first_difference(theirs, stored.to_dict(), ignored=RESUMABLE_KEYS):
        raise RunDirectoryError("config", f"that of {RECORD}", f"{out / CONFIG} with {differing}")


def open_run(out: Path, *, trust: bool = False) -> tuple[RunRecord, str, Config]:
    """Read a finished run's record, the SHA-256 of its weights and its config; they have to belong together."""
    check_finished(out)
    record = read_record(out / RECORD)
    digest = check_weights(out, record)
    stored = config_of_run(out, trust=trust)
    check_config_of(out, stored, record)
    return record, digest, stored


def kept_model(out: Path, config: Config, dataset: Dataset) -> nn.Module:
    """Build a run's network with the weights that it kept, on the config's device."""
    model = models.build(config.train.model, len(dataset.classes)).to(resolve_device(config.device))
    models.load_weights(out / WEIGHTS, model)
    return model


def reevaluate(
    out: Path,
    *,
    root: Path | None = None,
    overrides: Sequence[str] = (),
    trust: bool = False,
    progress: bool = True,
) -> RunRecord:
    """Evaluate a finished run's weights again and renew its record, which keeps at least what it had.

    Args:
        out: Directory of the run.
        root: Where the data is, if not where the run found it.
        overrides: Changes of keys of the evaluation, such as "evaluation.bins=20".
        trust: Import and call functions of other packages that the run's config names.
        progress: Show progress.
    """
    check_finished(out)
    with held(out):
        return _reevaluated(out, root, overrides, trust, progress)


def _reevaluated(out: Path, root: Path | None, overrides: Sequence[str], trust: bool, progress: bool) -> RunRecord:
    record, digest, stored = open_run(out, trust=trust)
    last = from_dict(stored.to_dict() | {"evaluation": record.config["evaluation"]})
    if last != stored:  # a kill came between the record and the config
        write_json(out / CONFIG, last.to_dict())
        stored = last
    config = changed_config(out, root, overrides)
    check_config(config)
    dataset = matched(config, load_dataset(config), out)
    check_data(config, dataset)
    _check_grid(shift_grid(config), dataset, record, config)
    model = kept_model(out, config, dataset)
    clock = time.perf_counter()
    evaluation = evaluate_with(config, model, dataset, preprocessing_of(config, dataset, model), progress=progress)
    if record.weights.sha256 is None:
        _check_alike(evaluation, record, out)
    settled = from_dict(stored.to_dict() | {"evaluation": config.evaluation.model_dump(mode="json")})
    record = record.model_copy(
        update={
            "config": settled.to_dict(),
            "weights": record.weights.model_copy(update={"sha256": digest}),
            "evaluation": evaluation.model_copy(update={"epoch": record.weights.epoch}),
            "seconds": record.seconds | {"evaluate": time.perf_counter() - clock},
            "evaluated_again": Environment.model_validate(environment()),
        }
    )
    write_record(out / RECORD, record)
    if settled != stored:
        write_json(out / CONFIG, settled.to_dict())
    return record


def changed_config(out: Path, root: Path | None, overrides: Sequence[str]) -> Config:
    """Read a run's config, with data elsewhere and another evaluation; other keys may not change."""
    for override in overrides:
        key = override.partition("=")[0].strip()
        if not key.startswith("evaluation.") or key == "evaluation.also":
            raise wrong("set", "a key of the evaluation (not `also`, whose weights were not kept)", key)
    moved = [] if root is None else [f"data.root={json.dumps(str(root))}"]
    config = config_of_run(out, [*moved, *overrides], trust=True)  # asked before
    if config.data.root is not None and not Path(config.data.root).exists():
        said = "a folder that exists" if root else f"as {out} had it (--data FOLDER says where it is now)"
        raise wrong("data.root", said, config.data.root)
    return config


def _check_grid(grid: ShiftGrid, dataset: Dataset, record: RunRecord, config: Config) -> None:
    """Raise if a new evaluation would lack what the record has."""
    lost = {cell.shift for cell in record.evaluation.shifts} - set(grid.names(dataset))
    lost |= record.evaluation.scaled_by - set(config.evaluation.temperatures)
    if lost:
        expected = f"one that covers all that {RECORD} has (remove {RECORD} to evaluate less)"
        raise wrong("evaluation", expected, f"one without {', '.join(sorted(map(str, lost)))}")


def _check_alike(evaluation: Evaluation, record: RunRecord, out: Path) -> None:
    """Raise if weights without a checksum give other numbers than their record has."""
    new, old = evaluation.clean.accuracy, record.evaluation.clean.accuracy
    if abs(new - old) > _APART:
        found = f"{out / WEIGHTS}, right on {new:.1%} of the clean test images where {RECORD} has {old:.1%}"
        raise RunDirectoryError("weights", f"those of the run {_AGAIN}", found)
