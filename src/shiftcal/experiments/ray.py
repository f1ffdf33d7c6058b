"""A grid of runs on a Ray cluster, one run per GPU (extra `ray`)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from shiftcal._errors import UnfinishedError, told, wrong
from shiftcal._machine import keep_freed_memory
from shiftcal._progress import Progress
from shiftcal.experiments.config import Config, from_dict
from shiftcal.experiments.run import complete
from shiftcal.records import RunRecord

RETRIES = 3


def complete_on_ray(configs: dict[str, Config], out: Path, *, progress: bool = True) -> list[RunRecord]:
    """Complete every run in its subdirectory of `out` on the cluster's machines, and return the records.

    The directory has to be one that all machines see: a run whose worker is lost is started elsewhere and resumes from
    its last checkpoint. The cluster is that of `RAY_ADDRESS`, or one on this machine alone.

    Args:
        configs: A config for each subdirectory.
        out: Where the runs are.
        progress: Show progress.
    """
    ray = _ray()
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES, retry_exceptions=False)(_run)
    places = {name: str((out / name).resolve()) for name in configs}
    waiting = {remote.remote(config.to_dict(), places[name], str(Path.cwd())): name for name, config in configs.items()}
    found: dict[str, RunRecord] = {}
    failed: dict[str, str] = {}
    with Progress("runs", len(configs), enabled=progress) as bar:
        while waiting:
            done, _ = ray.wait(list(waiting), num_returns=1)
            for reference in done:
                name = waiting.pop(reference)
                try:
                    found[name] = _result(ray, reference, name)
                except Exception as error:  # whatever it is, the others go on
                    failed[name] = told(error)
                bar.advance()
                bar.line(f"{name} {'finished' if name in found else 'failed'}, {len(waiting)} to go")
    if failed:
        raise UnfinishedError(failed, len(configs))
    return [found[name] for name in configs]


def _run(config: dict[str, Any], out: str, folder: str) -> RunRecord:
    """Complete one run; on a worker. Plugins may lie in the folder in which the grid was started."""
    if config.get("plugins") and folder not in sys.path:
        sys.path.append(folder)
    keep_freed_memory()
    return complete(from_dict(config), Path(out), resume=True, progress=False)


def _result(ray: Any, reference: Any, name: str) -> RunRecord:
    try:
        record: RunRecord = ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # what the run itself raised
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except ray.exceptions.RayError as error:
        raise wrong("engine", f"one whose workers stay, or come back {RETRIES} times", f"{name}: {error}") from None
    return record


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        expected = "'local', or ray installed (pip install 'shiftcal[ray]')"
        raise wrong("engine", expected, f"'ray' ({error})") from None
    return ray
