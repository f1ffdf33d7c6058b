"""Several runs side by side in one directory, one subdirectory each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from shiftcal import records
from shiftcal._checks import unknown, wrong
from shiftcal.bench.on_ray import complete_on_ray
from shiftcal.bench.run import check_config, complete, known_keys
from shiftcal.training.config import Config
from shiftcal.training.run import load_dataset

REPORT_FILES = frozenset({"report.html", "table.md", "reliability.png", "severity.png"})


def complete_all(configs: dict[str, Config], out: Path, engine: str = "local") -> list[dict[str, Any]]:
    """Complete every run in its subdirectory of `out` and return the records; finished runs are kept.

    Nothing is trained or written unless all of it can be: `out` must be new, or hold these runs, others that
    differ in method and seed alone, and their report. The engine is "local", one after the other here, or "ray".
    """
    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    if out.is_dir():
        for path in sorted(out.iterdir()):
            if path.name not in configs.keys() | REPORT_FILES:
                _check_another(path, next(iter(configs.values())))
    for name, config in configs.items():
        check_config(config)
        records.check(out / name, config.to_dict(), resume=True, now=partial(known_keys, config))
    if engine == "ray":
        return complete_on_ray(configs, out)
    datasets = {config.data: load_dataset(config) for config in configs.values()}
    return [complete(c, out / name, resume=True, dataset=datasets[c.data]) for name, c in configs.items()]


def _check_another(path: Path, config: Config) -> None:
    """Raise unless a path holds a run that differs from these in method and seed alone."""
    if not (path / records.CONFIG).is_file():
        raise wrong("out", "new, or hold nothing but these runs and their report", f"{path.parent}, with {path.name}")
    theirs = known_keys(config, records.read_object(path / records.CONFIG))
    same = {key: theirs[key] for key in ("method", "seed")}
    if differing := records.first_difference(config.to_dict() | same, theirs):
        expected = "new, or hold runs that differ in method and seed alone"
        raise wrong("out", expected, f"{path.parent}, where {path.name} has {differing}")
