"""One run from config to record: train, evaluate, write."""

from __future__ import annotations

import json
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn

from shiftcal import _ranks, models, records
from shiftcal._checks import unknown, wrong
from shiftcal._progress import say
from shiftcal.corruptions import CONSTANTS, CORRUPTIONS, EXTRA_CORRUPTIONS
from shiftcal.data import DATASETS
from shiftcal.data.dataset import Dataset, FileSplit
from shiftcal.evaluation import evaluate
from shiftcal.training import checkpoint
from shiftcal.training.config import Config, config_of_run, from_dict
from shiftcal.training.finetune import check_method, finetune, load_network
from shiftcal.training.loop import go_on
from shiftcal.training.run import Run, adapted, load_dataset, resolve_device

_PATIENCE = 30  # seconds


class UnfinishedError(FloatingPointError):
    """Runs of a grid that did not come to their end, while the others did."""

    def __init__(self, failed: dict[str, str], count: int) -> None:
        listed = " ".join(f"{name}: {message}" for name, message in failed.items())
        super().__init__(f"{len(failed)} of {count} runs did not come to their end. {listed}")


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
    _agree(out)
    if (out / records.RECORD).is_file():
        records.check(out, config.to_dict(), resume=resume, now=partial(known_keys, config))
        if (kept := _kept(out)) is not None:
            if progress:
                say(f"{config.method}: finished earlier and kept ({out}; remove it to train again)")
            return kept
    dataset = dataset or load_dataset(config)  # before the claim: wrong options must leave nothing behind
    with ExitStack() as held:
        return _complete(config, dataset, out, _Ways(held, resume, progress))


def _complete(config: Config, dataset: Dataset, out: Path, ways: _Ways) -> dict[str, Any]:
    started, clock = datetime.now(UTC), time.perf_counter()
    make = _finetuned if config.finetuned_from else _trained
    made = make(config, dataset, out, ways)
    trained = time.perf_counter()
    if _ranks.rank() == 0:
        checkpoint.save_weights(out / records.WEIGHTS, made.network)
    evaluation = evaluate_with(config, made.network, made.dataset, progress=ways.progress)
    also = {}
    for name in config.evaluation.also:
        network, epoch = made.run.weights(name)
        found = evaluate_with(config, network, made.dataset, progress=ways.progress, histograms=False)
        also[name] = found | {"epoch": epoch}
    record = {
        "schema": records.SCHEMA,
        "recipe": config.recipe,
        "method": config.method + ("-finetuned" if config.finetuned_from else ""),
        "seed": config.seed,
        "config": config.to_dict(),
        **records.environment(),
        "device": describe_device(made.run.device) | {"processes": _ranks.world()},
        "engine": made.run.engine | {"loader": "stream" if isinstance(dataset.train, FileSplit) else "memory"},
        "started": started.isoformat(timespec="seconds"),
        # Training seconds are summed over epochs: a resumed run counts what it did before the interruption.
        "seconds": {
            "train": sum(entry["seconds"] for entry in made.run.history),
            "evaluate": time.perf_counter() - trained,
            "this_process": time.perf_counter() - clock,
            **made.seconds,
        },
        "history": made.run.history,
        "weights": {"kept": config.row.weights, "epoch": made.epoch},
        "evaluation": evaluation,
        "also": also,
        **made.besides,
    }
    if _ranks.rank() == 0:
        records.write_json(out / records.RECORD, record)
    _ranks.barrier()
    return record


def _agree(out: Path) -> None:
    """Make sure that all processes see the same run in a directory: on another machine it may be another."""
    for _ in range(_PATIENCE):
        found = [*checkpoint.checkpoints(checkpoints_of(out)), *out.glob(records.RECORD)]
        seen = _ranks.gather_objects(found[-1].name if found else "nothing")
        if len(set(seen)) == 1:
            return
        time.sleep(1)  # file systems over a network show news late
    listed = ", ".join(f"{name} (process {rank})" for rank, name in enumerate(seen))
    raise wrong("out", "a directory that all processes see, where a run goes on", f"{out} with {listed}")


def _kept(out: Path) -> dict[str, Any] | None:
    """Return the record of a finished run; None, with a warning, if it or the weights were damaged or removed."""
    try:
        record = records.read_record(out / records.RECORD)
        with safetensors.safe_open(out / records.WEIGHTS, "pt"):
            return record
    except ValueError:
        damage = f"{out / records.RECORD} is damaged"
    except (OSError, safetensors.SafetensorError):
        damage = f"{out / records.WEIGHTS} is missing or damaged"
    warnings.warn(f"{damage}. It is made again from the last checkpoint.", stacklevel=3)
    return None


@dataclass(frozen=True)
class _Ways:
    """How a run is done: what it holds until its end, whether it goes on, and whether it shows progress."""

    held: ExitStack
    resume: bool
    progress: bool


@dataclass(frozen=True)
class _Made:
    """A finished run, the network to evaluate on which data, and what else its record tells."""

    run: Run
    network: nn.Module
    epoch: int
    dataset: Dataset
    seconds: dict[str, float] = field(default_factory=dict)
    besides: dict[str, Any] = field(default_factory=dict)


def _claim(config: Config, out: Path, ways: _Ways) -> None:
    """Let the first of several processes claim the directory; the others wait for it."""
    if _ranks.rank() == 0:
        now = partial(known_keys, config)
        records.check(out, config.to_dict(), resume=ways.resume, now=now)
        ways.held.enter_context(records.locked(out))
        records.claim(out, config.to_dict(), resume=ways.resume, now=now)
    _ranks.barrier()


def _trained(config: Config, dataset: Dataset, out: Path, ways: _Ways) -> _Made:
    run = Run(config, dataset)  # before the claim: weights that do not fit must leave nothing behind
    _claim(config, out, ways)
    go_on(run, checkpoints=checkpoints_of(out), resume=ways.resume, progress=ways.progress)
    return _Made(run, *run.weights(config.row.weights), run.dataset)


def _finetuned(config: Config, dataset: Dataset, out: Path, ways: _Ways) -> _Made:
    network = load_network(config, len(dataset.classes)).to(resolve_device(config.device))
    dataset = adapted(dataset, config, network)
    _claim(config, out, ways)
    before = evaluate_with(config, network, dataset, progress=ways.progress)
    chance = 1 / len(dataset.classes)
    if before["validation"]["accuracy"] < 1.5 * chance and len(dataset.classes) > 2:
        warnings.warn(
            f"The checkpoint is right on {before['validation']['accuracy']:.1%} of the validation images, hardly more "
            "than by chance. Does it have other classes, another order of them, or another normalisation "
            "(train.mean, train.std)?",
            stacklevel=2,
        )
    run, seconds = finetune(
        config, network, dataset, checkpoints=checkpoints_of(out), resume=ways.resume, progress=ways.progress
    )
    return _Made(run, network, run.epochs_done, dataset, {"features": seconds}, {"before": before})


def known_keys(config: Config, stored: dict[str, Any]) -> dict[str, Any]:
    """Give the stored config of a run, which an earlier version may have written, the keys that came later.

    What fine-tuning would do is of no account for a run that is none.
    """
    known = from_dict(stored).to_dict()
    return known if config.finetuned_from else known | {"finetune": config.to_dict()["finetune"]}


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
    if config.finetuned_from:
        check_method(config)
    resolve_device(config.device)


def check_finished(out: Path) -> None:
    """Raise unless a directory holds a finished run."""
    if not (out / records.RECORD).is_file() or not (out / records.WEIGHTS).is_file():
        raise wrong("directory", "a finished run (`shiftcal train … --resume` finishes one)", str(out))


def reevaluate(out: Path, *, root: Path | None = None, progress: bool = True) -> dict[str, Any]:
    """Evaluate a finished run's weights again and renew its record.

    Args:
        out: Directory of the run.
        root: Where the data is, if not where the run found it.
        progress: Show progress.
    """
    check_finished(out)
    record = records.read_record(out / records.RECORD)
    config = config_of_run(out, [] if root is None else [f"data.root={json.dumps(str(root))}"])
    if config.data.root is not None and not Path(config.data.root).exists():
        said = "a folder that exists" if root else f"as {out} had it (--data FOLDER says where it is now)"
        raise wrong("data.root", said, config.data.root)
    dataset = load_dataset(config)
    model = models.build(config.train.model, len(dataset.classes)).to(resolve_device(config.device))
    models.load_weights(out / records.WEIGHTS, model)
    clock = time.perf_counter()
    record["evaluation"] = evaluate_with(config, model, adapted(dataset, config, model), progress=progress)
    record["seconds"]["evaluate"] = time.perf_counter() - clock
    record["evaluated_again"] = records.environment()
    records.write_json(out / records.RECORD, record)
    return record


def evaluate_with(
    config: Config, model: nn.Module, dataset: Dataset, *, progress: bool, histograms: bool = True
) -> dict[str, Any]:
    """Evaluate as a config says."""
    return evaluate(
        model,
        dataset,
        corruptions=config.evaluation.corruptions,
        constants=config.evaluation.constants,
        frost=config.evaluation.frost,
        corrupted=config.evaluation.corrupted,
        bins=config.evaluation.bins,
        temperatures=config.evaluation.temperatures,
        histograms=histograms,
        temperature_criterion=config.evaluation.temperature_criterion,  # type: ignore[arg-type]
        batch_size=config.evaluation.batch_size,
        progress=progress,
    )


def describe_device(device: torch.device) -> dict[str, Any]:
    """Describe the device that a run used."""
    if device.type == "cuda":
        return {"type": "cuda", "name": torch.cuda.get_device_name(device)}
    return {"type": "cpu", "threads": torch.get_num_threads()}
