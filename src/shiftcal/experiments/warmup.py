"""Warm-ups that runs of a grid share: what is the same until filter and constraint start is trained by one of them."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shiftcal import _distributed
from shiftcal._errors import CheckpointError, RunDirectoryError
from shiftcal._io import to_json
from shiftcal._lock import locked
from shiftcal._progress import say
from shiftcal.experiments import checkpoint, directory
from shiftcal.experiments.config import Config
from shiftcal.experiments.run import comparable
from shiftcal.methods import uses
from shiftcal.records import RECORD

# Sections and keys that count later, or not at all; what they say of the epochs before is in the cells.
_LATER = ("recipe", "method", "gamma", "filter", "constraint", "finetune", "evaluation", "engine")
_LATER_IN_TRAIN = ("keep", "track", "clip_norm", "smoothing")


def identity(config: Config) -> dict[str, Any]:
    """Return all that decides the epochs before filter and constraint start, and what is kept of them, as plain data.

    Runs that agree in it train the same weights until then: bit for bit on a CPU.
    """
    row, own, tree = config.row, config.train, config.to_dict()
    cells = dataclasses.asdict(dataclasses.replace(row, low_pass=None, constraint=None, weights="last"))
    cells["loss"]["gamma"] = row.loss.gamma and getattr(config.gamma, row.loss.gamma)
    cells["clip_norm"] = row.clip_norm if own.clip_norm is None else own.clip_norm
    kept = {key: value for key, value in tree.items() if key not in _LATER}
    kept["data"] = {key: value for key, value in tree["data"].items() if key != "workers"}
    kept["train"] = {key: value for key, value in tree["train"].items() if key not in _LATER_IN_TRAIN}
    kept["perturb"] = row.perturb and kept["perturb"]
    return kept | {
        "cells": cells,
        "engine": [tree["engine"][key] for key in ("precision", "deterministic")],
        "validation": [tree["evaluation"][key] for key in ("bins", "batch_size", "validate_every")],
        "weights": sorted({row.weights, *config.evaluation.also} - {"last"}),
    }


def followers_of(name: str, configs: Mapping[str, Config], out: Path) -> dict[str, Config]:
    """List the runs that have not begun and may continue from the warm-up of one that has it before itself."""
    config = configs[name]
    if not _shares(config) or _is_past(config, out / name):
        return {}
    own = identity(config)
    others = {other: one for other, one in configs.items() if other != name and _shares(one)}
    started = uses(config.row, "train.start")
    return {
        other: one
        for other, one in others.items()
        if (started or uses(one.row, "train.start")) and not _has_begun(out / other) and identity(one) == own
    }


def hand_over(path: Path, followers: Mapping[str, Config], out: Path, by: str) -> None:
    """Let runs continue from a checkpoint of another run; one that cannot is told of, and trains on its own."""
    for name, config in followers.items():
        try:
            _continue_from(path, config, out / name, by)
        except (CheckpointError, RunDirectoryError, OSError) as error:
            say(f"{name} does not continue from the warm-up of {by}: {error}")


def on_one_machine() -> bool:
    """Tell whether all ranks are on one machine: those on another may not see what rank 0 writes."""
    return len(set(_distributed.all_gather_object(socket.gethostname()))) == 1


def _shares(config: Config) -> bool:
    """Tell whether a run has a warm-up that may be another's: it measures no more than validation images there."""
    start, own = config.train.start_epoch, config.evaluation
    measures = own.every is not None or any(epoch <= start for epoch in own.noise)
    return not measures and not config.finetuned_from and 0 < start < config.train.epochs


def _has_begun(out: Path) -> bool:
    return (out / RECORD).is_file() or bool(checkpoint.checkpoints(directory.checkpoints_in(out)))


def _is_past(config: Config, out: Path) -> bool:
    """Tell whether a run has done its warm-up already."""
    done = checkpoint.epochs_done(directory.checkpoints_in(out))
    return (out / RECORD).is_file() or done >= config.train.start_epoch


def _continue_from(path: Path, config: Config, out: Path, by: str) -> None:
    with locked(out):
        if _has_begun(out):
            return  # another process has begun it meanwhile
        directory.claim(out, config.to_dict(), resume=True, upgrade=partial(comparable, config))
        best = (one for one in checkpoint.best_checkpoints(path.parent) if checkpoint.is_whole(one))
        for one in (*best, path):  # the last one last: it makes the run one that has begun
            _write_as(one, config, directory.checkpoints_in(out), by)


def _write_as(path: Path, config: Config, checkpoints: Path, by: str) -> None:
    """Write a checkpoint of a warm-up as one of another run that shares it."""
    tensors, state, history = checkpoint.read(path)
    state = state | {"config": config.to_dict(), "constraint_momentum": {}}  # it starts where the constraint does
    entries = to_json([entry | {"trained_by": by} for entry in history])
    write = partial(checkpoint.write, checkpoints, path.name, tensors, state, entries)
    checkpoint.with_room(write, checkpoints, f"checkpoint {path.name}", patience=0, warn=say)
