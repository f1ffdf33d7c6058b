"""A grid of runs in one directory, one subdirectory each."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from shiftcal import _distributed
from shiftcal._errors import DivergedError, RunDirectoryError, UnfinishedError, check_count, told, unknown, wrong
from shiftcal._io import first_difference, read_object
from shiftcal._progress import say
from shiftcal.data.dataset import Dataset
from shiftcal.experiments import directory
from shiftcal.experiments.checks import check_config, check_data
from shiftcal.experiments.config import Config, DataSettings
from shiftcal.experiments.ray import complete_on_ray
from shiftcal.experiments.run import comparable, complete
from shiftcal.experiments.setup import load_dataset
from shiftcal.experiments.side_by_side import complete_side_by_side
from shiftcal.experiments.sweep import keys_in, run_name
from shiftcal.experiments.warmup import followers_of, hand_over, on_one_machine
from shiftcal.records import CONFIG, RECORD, SELECTION, SPEED_KEYS, RunRecord, read_record

_TABLES = {"table.md", "table.tex", "shifts.md", "shifts.tex", "cost.md", "values.csv"}
REPORT_FILES = frozenset({"report.html", "reliability.png", "severity.png", SELECTION} | _TABLES)


def complete_all(
    configs: dict[str, Config],
    out: Path,
    engine: str = "local",
    *,
    workers: int = 1,
    swept: Collection[str] = (),
    share_warmup: bool = True,
) -> list[RunRecord]:
    """Complete every run in its subdirectory of `out` and return the records; finished runs are kept.

    A run that fails does not stop the others: `UnfinishedError` is raised when these have finished.
    Nothing is trained or written unless all of it can be, see `check_all`. The engine is "local", one after the other
    here or `workers` at a time, or "ray". With `share_warmup`, what runs have in common until filter and constraint
    start is trained by one of them (not on Ray, and not where ranks are on several machines).
    """
    check_count("workers", workers)
    if workers > 1 and engine != "local":
        raise wrong("workers", "1 with another engine than 'local'", workers)
    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    check_all(configs, out, swept)
    if engine == "ray":
        return complete_on_ray(configs, out)
    kept: dict[DataSettings, Dataset] = {}  # one at a time: a sweep may be over data sets
    for config in sorted(configs.values(), key=lambda config: config.data.model_dump_json()):
        kept = kept if config.data in kept else {config.data: load_dataset(config)}
        check_data(config, kept[config.data])
    share_warmup = share_warmup and on_one_machine()
    if workers > 1:
        return complete_side_by_side(configs, out, workers, share_warmup=share_warmup)
    done: list[RunRecord] = []
    failed: dict[str, str] = {}
    for number, (name, config) in enumerate(configs.items(), start=1):
        say(f"{name}, run {number} of {len(configs)}")
        kept = kept if config.data in kept else {config.data: load_dataset(config)}
        followers = followers_of(name, configs, out) if share_warmup else {}
        after = partial(hand_over, followers=followers, out=out, by=name) if followers else None
        try:
            done.append(complete(config, out / name, resume=True, dataset=kept[config.data], after_warmup=after))
        except Exception as error:
            if _distributed.world_size() > 1 and not isinstance(error, DivergedError):
                raise  # the other ranks may be in the middle of this run
            failed[name] = told(error)
            say(f"{name}: {failed[name]}")
    if failed:
        raise UnfinishedError(failed, len(configs))
    return done


def check_all(configs: dict[str, Config], out: Path, swept: Collection[str] = ()) -> None:
    """Raise unless `out` is new, or holds these runs, others that one table may show beside them, and their report.

    Others may differ in method and seed, in the keys that are swept now, and in those that were swept when their
    directory got its name.
    """
    if not configs:
        raise wrong("configs", "at least one run", "none")
    if out.is_dir():
        for path in sorted(out.iterdir()):
            half_written = path.name.startswith(".") and path.name.endswith(".tmp")  # a report that a kill ended
            if path.name not in configs.keys() | REPORT_FILES and not half_written:
                _check_other(path, list(configs.values()), swept)
    for name, config in configs.items():
        check_config(config)
        directory.check(out / name, config.to_dict(), resume=True, upgrade=partial(comparable, config))


def placed(configs: dict[str, Config], out: Path) -> dict[str, Config]:
    """Name runs as the directory does that has them already: a sweep takes up what a grid without it has run."""
    places = {name: name for name in configs}
    free = {name: config for name, config in configs.items() if not (out / name).exists()}
    for path in sorted(out.glob(f"*/{CONFIG}")) if free else ():
        if (name := path.parent.name) not in configs and (wanted := _same_run(path, free)) is not None:
            places[wanted] = name
            del free[wanted]
    return {places[name]: config for name, config in configs.items()}


def _same_run(path: Path, configs: dict[str, Config]) -> str | None:
    """Find the config that a directory holds, if it is named after it."""
    try:
        stored = read_object(path)
        alike = {n: c for n, c in configs.items() if (c.method, c.seed) == (stored.get("method"), stored.get("seed"))}
        for name, config in alike.items():
            theirs = comparable(config, stored)
            same = first_difference(config.to_dict(), theirs, ignored=SPEED_KEYS) is None
            if same and _is_named(path.parent.name, theirs):
                return name
    except ValueError:  # the checks name what is wrong
        return None
    return None


def _is_named(name: str, config: dict[str, Any]) -> bool:
    return name == run_name(config, keys_in(name))


def _check_other(path: Path, configs: list[Config], swept: Collection[str]) -> None:
    """Raise unless a path holds a run that differs from these in method, seed and swept keys, and in nothing else."""
    if not (path / CONFIG).is_file():
        expected = "new, or hold nothing but these runs and their report"
        raise RunDirectoryError("out", expected, f"{path.parent}, with {path.name}")
    stored = read_object(path / CONFIG)
    expected = "new, or hold runs that differ in method, seed and swept keys alone"
    try:
        theirs = comparable(configs[0], stored)
    except ValueError as error:
        raise RunDirectoryError("out", expected, f"{path.parent}, with {path.name}: {error}") from None
    alike = [c.to_dict() for c in configs if (c.method, c.seed) == (theirs["method"], theirs["seed"])]
    if any(first_difference(tree, theirs, ignored=SPEED_KEYS) is None for tree in alike):
        found = f"{path.parent}, where {path.name} has {theirs['method']} with seed {theirs['seed']}"
        raise RunDirectoryError("out", expected, found)
    free = {"method", "seed", *swept, *(keys_in(path.name) if _is_named(path.name, theirs) else ())}
    if differing := first_difference(configs[0].to_dict(), theirs, ignored=SPEED_KEYS | free):
        raise RunDirectoryError("out", expected, f"{path.parent}, where {path.name} has {differing}")
    if (path / RECORD).is_file():
        read_record(path / RECORD)  # damaged ones are found before training
