"""One run from config to record: train, evaluate, write."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shiftcal import models, records
from shiftcal._checks import unknown, wrong
from shiftcal.corruptions import CONSTANTS, CORRUPTIONS, EXTRA_CORRUPTIONS
from shiftcal.data import DATASETS
from shiftcal.data.dataset import Dataset
from shiftcal.evaluation import evaluate
from shiftcal.training import checkpoint
from shiftcal.training.config import Config, from_dict
from shiftcal.training.loop import load_dataset, resolve_device, train


def checkpoints_of(out: Path) -> Path:
    """Say where a run keeps its checkpoints."""
    return out / "checkpoints"


def complete(
    config: Config, out: Path, *, resume: bool = False, dataset: Dataset | None = None, progress: bool = True
) -> dict[str, Any]:
    """Train and evaluate one run in a directory of its own, and return its record.

    With `resume`, a finished run is not trained again and an interrupted one goes on from its last checkpoint.
    """
    check_config(config)
    if (out / records.RECORD).is_file():
        records.check(out, config.to_dict(), resume=resume)
        if progress:
            print(f"{config.method}: finished earlier and kept ({out}; remove it to train again)")
        return records.read_record(out / records.RECORD)
    dataset = dataset or load_dataset(config)  # before the claim: wrong options must leave nothing behind
    records.claim(out, config.to_dict(), resume=resume)
    started, clock = datetime.now(UTC), time.perf_counter()
    run = train(config, dataset, checkpoints=checkpoints_of(out), resume=resume, progress=progress)
    trained = time.perf_counter()
    checkpoint.save_weights(out / records.WEIGHTS, run.model)
    evaluation = evaluate_with(config, run.model, dataset, progress=progress)
    record = {
        "schema": records.SCHEMA,
        "recipe": config.recipe,
        "method": config.method,
        "seed": config.seed,
        "config": config.to_dict(),
        **records.environment(),
        "device": describe_device(run.device),
        "started": started.isoformat(timespec="seconds"),
        # Training seconds are summed over epochs: a resumed run counts what it did before the interruption.
        "seconds": {
            "train": sum(entry["seconds"] for entry in run.history),
            "evaluate": time.perf_counter() - trained,
            "this_process": time.perf_counter() - clock,
        },
        "history": run.history,
        "evaluation": evaluation,
    }
    records.write_json(out / records.RECORD, record)
    return record


def check_config(config: Config) -> None:
    """Raise if a config names what does not exist or what this machine does not have."""
    named = (
        ("data.name", [config.data.name], DATASETS),
        ("evaluation.corruptions", config.evaluation.corruptions, ("all", *CORRUPTIONS, *EXTRA_CORRUPTIONS)),
        ("evaluation.constants", [config.evaluation.constants], CONSTANTS),
    )
    for key, names, known in named:
        for name in names:
            if name not in known:
                raise unknown(key, name, known)
    models.find(config.train.model)
    resolve_device(config.device)


def check_finished(out: Path) -> None:
    """Raise unless a directory holds a finished run."""
    if not (out / records.RECORD).is_file() or not (out / records.WEIGHTS).is_file():
        raise wrong("directory", "a finished run (`shiftcal train … --resume` finishes one)", str(out))


def reevaluate(out: Path, *, progress: bool = True) -> dict[str, Any]:
    """Evaluate a finished run's weights again and renew its record."""
    check_finished(out)
    record = records.read_record(out / records.RECORD)
    config = from_dict(records.read_object(out / records.CONFIG))
    dataset = load_dataset(config)
    model = models.build(config.train.model, len(dataset.classes)).to(resolve_device(config.device))
    checkpoint.load_weights(out / records.WEIGHTS, model)
    clock = time.perf_counter()
    record["evaluation"] = evaluate_with(config, model, dataset, progress=progress)
    record["seconds"]["evaluate"] = time.perf_counter() - clock
    record["evaluated_again"] = records.environment()
    records.write_json(out / records.RECORD, record)
    return record


def evaluate_with(config: Config, model: nn.Module, dataset: Dataset, *, progress: bool) -> dict[str, Any]:
    """Evaluate as a config says."""
    return evaluate(
        model,
        dataset,
        corruptions=config.evaluation.corruptions,
        constants=config.evaluation.constants,
        frost=config.evaluation.frost,
        corrupted=config.evaluation.corrupted,
        bins=config.evaluation.bins,
        temperature_criterion=config.evaluation.temperature_criterion,  # type: ignore[arg-type]
        batch_size=config.evaluation.batch_size,
        progress=progress,
    )


def describe_device(device: torch.device) -> dict[str, Any]:
    """Describe the device that a run used."""
    if device.type == "cuda":
        return {"type": "cuda", "name": torch.cuda.get_device_name(device)}
    return {"type": "cpu", "threads": torch.get_num_threads()}
