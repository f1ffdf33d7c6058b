"""Several runs side by side in one directory, one subdirectory each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from shiftcal import records
from shiftcal._checks import unknown, wrong
from shiftcal._progress import say
from shiftcal.bench.on_ray import complete_on_ray
from shiftcal.bench.run import UnfinishedError, check_config, complete, known_keys
from shiftcal.training.config import Config
from shiftcal.training.run import load_dataset

REPORT_FILES = frozenset({"report.html", "table.md", "reliability.png", "severity.png"})


def complete_all(configs: dict[str, Config], out: Path, engine: str = "local") -> list[dict[str, Any]]:
    """Complete every run in its subdirectory of `out` and return the records; finished runs are kept.

    A run that diverges does not keep the others from their end: what it raised comes after them.
    Nothing is trained or written unless all of it can be: `out` must be new, or hold these runs, others that
    differ in method and seed alone, and their report. The engine is "local", one after the other here, or "ray".
    """
    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    if not configs:
        raise wrong("configs", "at least one run", "none")
    if out.is_dir():
        for path in sorted(out.iterdir()):
            if path.name not in configs.keys() | REPORT_FILES:
                _check_another(path, list(configs.values()))
    for name, config in configs.items():
        check_config(config)
        records.check(out / name, config.to_dict(), resume=True, now=partial(known_keys, config))
    if engine == "ray":
        return complete_on_ray(configs, out)
    datasets = {config.data: load_dataset(config) for config in configs.values()}
    done: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for number, (name, config) in enumerate(configs.items(), start=1):
        say(f"{name}, run {number} of {len(configs)}")
        try:
            done.append(complete(config, out / name, resume=True, dataset=datasets[config.data]))
        except FloatingPointError as error:
            failed[name] = str(error)
            say(f"{name}: {error}")
    if failed:
        raise UnfinishedError(failed, len(configs))
    return done


def _check_another(path: Path, configs: list[Config]) -> None:
    """Raise unless a path holds a run that differs from these in method and seed, and in nothing else."""
    if not (path / records.CONFIG).is_file():
        raise wrong("out", "new, or hold nothing but these runs and their report", f"{path.parent}, with {path.name}")
    stored = records.read_object(path / records.CONFIG)
    cell = {key: stored.get(key) for key in ("method", "seed")}
    expected = "new, or hold runs that differ in method and seed alone"
    if any(cell == {"method": config.method, "seed": config.seed} for config in configs):
        raise wrong("out", expected, f"{path.parent}, where {path.name} has {cell['method']} with seed {cell['seed']}")
    try:
        theirs = known_keys(configs[0], stored)
    except ValueError as error:
        raise wrong("out", expected, f"{path.parent}, with {path.name}: {error}") from None
    if differing := records.first_difference(configs[0].to_dict() | cell, theirs):
        raise wrong("out", expected, f"{path.parent}, where {path.name} has {differing}")
    if (path / records.RECORD).is_file():
        records.read_record(path / records.RECORD)  # damaged ones are found before training
