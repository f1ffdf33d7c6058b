"""A grid of runs in one directory, one subdirectory each."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from shiftcal._errors import DivergedError, RunDirectoryError, UnfinishedError, check_count, unknown, wrong
from shiftcal._io import first_difference, read_object
from shiftcal._progress import say
from shiftcal.experiments import directory
from shiftcal.experiments.checks import check_config, check_data
from shiftcal.experiments.config import Config
from shiftcal.experiments.ray import complete_on_ray
from shiftcal.experiments.run import comparable, complete
from shiftcal.experiments.setup import load_dataset
from shiftcal.experiments.side_by_side import complete_side_by_side
from shiftcal.records import CONFIG, RECORD, SPEED_KEYS, RunRecord, read_record

REPORT_FILES = frozenset(
    {"report.html", "table.md", "table.tex", "shifts.md", "values.csv", "reliability.png", "severity.png"}
)


def complete_all(configs: dict[str, Config], out: Path, engine: str = "local", *, workers: int = 1) -> list[RunRecord]:
    """Complete every run in its subdirectory of `out` and return the records; finished runs are kept.

    A run that diverges does not stop the others: `UnfinishedError` is raised when these have finished.
    Nothing is trained or written unless all of it can be: `out` must be new, or hold these runs, others that
    differ in method and seed alone, and their report. The engine is "local", one after the other here or `workers` at a
    time, or "ray".
    """
    check_count("workers", workers)
    if workers > 1 and engine != "local":
        raise wrong("workers", "1 with another engine than 'local'", workers)
    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    if not configs:
        raise wrong("configs", "at least one run", "none")
    if out.is_dir():
        for path in sorted(out.iterdir()):
            if path.name not in configs.keys() | REPORT_FILES:
                _check_other(path, list(configs.values()))
    for name, config in configs.items():
        check_config(config)
        directory.check(out / name, config.to_dict(), resume=True, upgrade=partial(comparable, config))
    if engine == "ray":
        return complete_on_ray(configs, out)
    datasets = {config.data: load_dataset(config) for config in configs.values()}
    for config in configs.values():
        check_data(config, datasets[config.data])
    if workers > 1:
        return complete_side_by_side(configs, out, workers)
    done: list[RunRecord] = []
    failed: dict[str, str] = {}
    for number, (name, config) in enumerate(configs.items(), start=1):
        say(f"{name}, run {number} of {len(configs)}")
        try:
            done.append(complete(config, out / name, resume=True, dataset=datasets[config.data]))
        except DivergedError as error:
            failed[name] = str(error)
            say(f"{name}: {error}")
    if failed:
        raise UnfinishedError(failed, len(configs))
    return done


def _check_other(path: Path, configs: list[Config]) -> None:
    """Raise unless a path holds a run that differs from these in method and seed, and in nothing else."""
    if not (path / CONFIG).is_file():
        expected = "new, or hold nothing but these runs and their report"
        raise RunDirectoryError("out", expected, f"{path.parent}, with {path.name}")
    stored = read_object(path / CONFIG)
    cell = {key: stored.get(key) for key in ("method", "seed")}
    expected = "new, or hold runs that differ in method and seed alone"
    if any(cell == {"method": config.method, "seed": config.seed} for config in configs):
        found = f"{path.parent}, where {path.name} has {cell['method']} with seed {cell['seed']}"
        raise RunDirectoryError("out", expected, found)
    try:
        theirs = comparable(configs[0], stored)
    except ValueError as error:
        raise RunDirectoryError("out", expected, f"{path.parent}, with {path.name}: {error}") from None
    if differing := first_difference(configs[0].to_dict() | cell, theirs, ignored=SPEED_KEYS):
        raise RunDirectoryError("out", expected, f"{path.parent}, where {path.name} has {differing}")
    if (path / RECORD).is_file():
        read_record(path / RECORD)  # damaged ones are found before training
