"""Finished runs, opened to compute with: the kept weights, the data and the preprocessing of their evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from shiftcal._errors import DataError
from shiftcal.data.dataset import Dataset
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import ImageSplit
from shiftcal.evaluation import Parts
from shiftcal.experiments.checks import check_config, check_data
from shiftcal.experiments.config import Config, from_dict
from shiftcal.experiments.finished import changed_config, kept_model, open_run
from shiftcal.experiments.origin import matched
from shiftcal.experiments.setup import load_dataset, preprocessing_of, shift_grid
from shiftcal.records import RunRecord
from shiftcal.shifts.lazy import Corrupted


@dataclass(frozen=True)
class FinishedRun:
    """A finished run that can compute: its model with the kept weights, its data, and how images become inputs."""

    path: Path
    record: RunRecord
    config: Config
    dataset: Dataset
    model: nn.Module
    preprocess: Preprocessing

    def cells(self) -> list[tuple[str, int | None, Parts]]:
        """List the shifted test sets that the run was evaluated on."""
        return list(shift_grid(self.config).cells(self.dataset.test, self.dataset.shifts, self.dataset.classes))


def open_finished(path: Path, *, root: Path | None, device: str, trust: bool) -> FinishedRun:
    """Open a finished run with the data and the preprocessing of its evaluation."""
    record, _, _ = open_run(path, trust=trust)
    config = from_dict(changed_config(path, root, ()).to_dict() | {"device": device})
    check_config(config)
    dataset = matched(config, load_dataset(config), path)
    check_data(config, dataset)
    model = kept_model(path, config, dataset)
    return FinishedRun(path, record, config, dataset, model.eval(), preprocessing_of(config, dataset, model))


def check_same_classes(runs: Sequence[FinishedRun]) -> None:
    """Raise unless runs have the same classes, so that the same images can be shown to all."""
    for run in runs:
        if run.dataset.classes != runs[0].dataset.classes:
            expected = f"runs on the same classes as {runs[0].path}"
            raise DataError("RUN", expected, f"{run.path} on {run.dataset.name}")


def labels_of(runs: Sequence[FinishedRun]) -> list[str]:
    """Name runs by their methods where these differ, else by their directories."""
    methods = [run.record.method for run in runs]
    return methods if len(set(methods)) == len(methods) else [run.path.resolve().name for run in runs]


def thinned(split: Parts, count: int) -> Parts:
    """Take so many samples of a split, evenly over it, since sets on disk are sorted by class."""
    if isinstance(split, Corrupted):
        inner = thinned(split.split, count)
        return replace(split, split=inner) if isinstance(inner, ImageSplit) else split
    if not isinstance(split, ImageSplit) or len(split) <= count:
        return split
    chosen = torch.zeros(len(split), dtype=torch.bool, device=split.targets.device)
    chosen[torch.linspace(0, len(split) - 1, count, device=chosen.device).round().long()] = True
    return split.take(chosen)
