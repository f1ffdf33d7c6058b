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

    Nothing is trained or written unless all of it can be: `out` must be new, or hold these runs and their report alone.
    The engine is "local", one after the other here, or "ray".
    """
    if engine not in ("local", "ray"):
        raise unknown("engine", engine, ("local", "ray"))
    if out.is_dir():
        others = {path.name for path in out.iterdir()} - configs.keys() - REPORT_FILES
        if others:
            found = f"{out}, which holds {min(others)}"
            raise wrong("out", f"new, or hold nothing but {', '.join(configs)} and their report", found)
    for name, config in configs.items():
        check_config(config)
        records.check(out / name, config.to_dict(), resume=True, now=partial(known_keys, config))
    if engine == "ray":
        return complete_on_ray(configs, out)
    datasets = {config.data: load_dataset(config) for config in configs.values()}
    return [complete(c, out / name, resume=True, dataset=datasets[c.data]) for name, c in configs.items()]
