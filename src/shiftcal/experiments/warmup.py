"""Warm-ups that several runs of a grid share: what is the same until filter and constraint start is trained once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from shiftcal import _distributed
from shiftcal._io import to_json
from shiftcal._lock import locked
from shiftcal._progress import say
from shiftcal.data.dataset import Dataset
from shiftcal.experiments import checkpoint, directory
from shiftcal.experiments.config import Config, from_dict
from shiftcal.experiments.run import comparable, train
from shiftcal.records import RECORD

WARMUPS = ".warmups"
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
        "validation": [tree["evaluation"][key] for key in ("bins", "batch_size")],
        "weights": sorted({row.weights, *config.evaluation.also} - {"last"}),
        "ranks": _distributed.world_size(),
    }


def warmups(configs: Mapping[str, Config], out: Path) -> dict[str, Config]:
    """List the warm-ups that are worth training first, by their place in `out`: those of two new runs or more."""
    found: dict[str, Config] = {}
    for place, members in _groups(configs, out).items():
        first = next(iter(members.values()))
        if len(members) > 1 and any(map(_starts, members.values())) and _trained(out / place, first) is None:
            evaluation = first.evaluation.model_copy(update={"noise": ()})
            train = first.train.model_copy(update={"track": ()})
            found[place] = first.model_copy(update={"evaluation": evaluation, "train": train})
    seen: dict[str, dict[str, Any]] = _distributed.all_gather_object({p: c.to_dict() for p, c in found.items()})[0]
    return {place: from_dict(tree) for place, tree in seen.items()}  # as rank 0 sees the directory


def warm_up(config: Config, place: Path, *, dataset: Dataset | None = None, progress: bool = False) -> None:
    """Train until filter and constraint start, and leave a checkpoint there; an interrupted warm-up is resumed."""
    first = _distributed.rank() == 0
    with locked(place) if first else nullcontext():
        if first:
            _become(config, directory.checkpoints_in(place))
        _distributed.barrier()
        checkpoints, epochs = directory.checkpoints_in(place), config.train.start_epoch
        train(config, dataset, checkpoints=checkpoints, resume=True, progress=progress, until=epochs)


def take_over(configs: Mapping[str, Config], out: Path) -> None:
    """Let runs that have not begun continue from the warm-up that is theirs, where it was trained."""
    if _distributed.rank() == 0:
        for place, members in _groups(configs, out).items():
            if (path := _trained(out / place, next(iter(members.values())))) is not None:
                for name, config in members.items():
                    _continue_from(path, config, out / name)
    _distributed.barrier()


def remove(out: Path) -> None:
    """Remove the warm-ups of a grid whose runs have finished: they would outlive the code and data they are from."""
    if _distributed.rank() == 0:
        shutil.rmtree(out / WARMUPS, ignore_errors=True)


def _starts(config: Config) -> bool:
    return config.row.low_pass is not None or config.row.constraint is not None


def _groups(configs: Mapping[str, Config], out: Path) -> dict[str, dict[str, Config]]:
    """Put runs that have not begun together by the warm-up that is theirs.

    Those that measure more than validation images on the way are left out.
    """
    groups: dict[str, dict[str, Config]] = {}
    for name, config in configs.items():
        begun = (out / name / RECORD).is_file() or checkpoint.checkpoints(directory.checkpoints_in(out / name))
        start, own = config.train.start_epoch, config.evaluation
        measures = own.every is not None or any(epoch <= start for epoch in own.noise)
        if not begun and not measures and not config.finetuned_from and 0 < start < config.train.epochs:
            digest = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:12]
            groups.setdefault(f"{WARMUPS}/{digest}-{config.seed}", {})[name] = config
    return groups


def _trained(place: Path, config: Config) -> Path | None:
    """Return the checkpoint at the end of a warm-up, if it is there and whole."""
    path = directory.checkpoints_in(place) / checkpoint.name_of(config.train.start_epoch)
    return path if path.is_dir() and checkpoint.is_whole(path) else None


def _become(config: Config, checkpoints: Path) -> None:
    """Let the checkpoints of an interrupted warm-up be those of a run that shares it, whichever began it."""
    for path in (*checkpoint.best_checkpoints(checkpoints), *checkpoint.checkpoints(checkpoints)):
        if checkpoint.is_whole(path) and checkpoint.load_state(path)["config"] != config.to_dict():
            _write_as(path, config, checkpoints)


def _continue_from(path: Path, config: Config, out: Path) -> None:
    with locked(out):
        directory.claim(out, config.to_dict(), resume=True, upgrade=partial(comparable, config))
        best = (one for one in checkpoint.best_checkpoints(path.parent) if checkpoint.is_whole(one))
        for one in (*best, path):  # the last one last: it makes the run one that has begun
            _write_as(one, config, directory.checkpoints_in(out), shared=True)


def _write_as(path: Path, config: Config, checkpoints: Path, *, shared: bool = False) -> None:
    """Write a checkpoint of a warm-up as one of a run that shares it."""
    tensors, state, history = checkpoint.read(path)
    state = state | {"config": config.to_dict(), "constraint_momentum": {}}  # it starts where the constraint does
    entries = [entry | {"shared": True} for entry in history] if shared else history
    write = partial(checkpoint.write, checkpoints, path.name, tensors, state, to_json(entries))
    checkpoint.with_room(write, checkpoints, f"checkpoint {path.name}", warn=say)
