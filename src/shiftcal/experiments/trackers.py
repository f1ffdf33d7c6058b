"""What a run is told to: TensorBoard, Weights & Biases (extra `tracking`) and MLflow (extra `mlflow`)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from shiftcal._errors import unknown, wrong
from shiftcal._io import flat, read_object, write_json
from shiftcal.experiments.config import Config

Metrics = Mapping[str, float]
_LOCAL_STORE = "mlruns"
_WANDB_RUN, _MLFLOW_RUN = "wandb.json", "mlflow.json"  # which of its runs a directory belongs to, for --resume
_AT_ONCE = 100  # parameters that MLflow takes in one request


@runtime_checkable
class Tracker(Protocol):
    """A tracker: gets the numbers of every epoch, then those of the evaluation with files, and is closed."""

    def __init__(self, directory: Path, config: Config) -> None: ...

    def log(self, metrics: Metrics, epoch: int) -> None:
        """Take the numbers of an epoch."""

    def finish(self, metrics: Metrics, files: Sequence[Path], epoch: int) -> None:
        """Take the numbers of the evaluation, figures and the page."""

    def close(self) -> None:
        """Write what is held."""


def make_tracker(name: str, directory: Path, config: Config) -> Tracker:
    """Start a tracker by name."""
    if name not in TRACKERS:
        raise unknown("train.track", name, TRACKERS)
    kind, extra = TRACKERS[name]
    try:
        return kind(directory, config)
    except ImportError as error:
        expected = f"of installed trackers (pip install 'shiftcal[{extra}]')"
        raise wrong("train.track", expected, f"{name} ({error})") from None


class _TensorBoard:
    """TensorBoard: numbers, figures and the tables; it has no place for a page."""

    def __init__(self, directory: Path, config: Config) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory / "tensorboard"))
        self._writer.add_text("config", json.dumps(config.to_dict(), indent=1))

    def log(self, metrics: Metrics, epoch: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, epoch)

    def finish(self, metrics: Metrics, files: Sequence[Path], epoch: int) -> None:
        import numpy as np
        from PIL import Image

        self.log(metrics, epoch)
        for file in files:
            if file.suffix == ".png":
                with Image.open(file) as image:
                    self._writer.add_image(file.stem, np.asarray(image.convert("RGB")), epoch, dataformats="HWC")
            elif file.suffix == ".md":
                self._writer.add_text(file.stem, file.read_text(encoding="utf-8"), epoch)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """Weights & Biases; WANDB_MODE=offline keeps all on this machine. A resumed run continues in the same one."""

    def __init__(self, directory: Path, config: Config) -> None:
        import wandb

        self._wandb: Any = wandb
        place = directory / _WANDB_RUN
        known = read_object(place).get("run_id") if place.is_file() else None
        told: dict[str, Any] = {"project": "shiftcal", "name": _name_of(config), "config": config.to_dict()}
        self._run: Any = wandb.init(**told, dir=str(directory), id=known, resume="allow")
        directory.mkdir(parents=True, exist_ok=True)
        write_json(place, {"run_id": self._run.id})

    def log(self, metrics: Metrics, epoch: int) -> None:
        self._run.log(dict(metrics), step=epoch)

    def finish(self, metrics: Metrics, files: Sequence[Path], epoch: int) -> None:
        shown: dict[str, Any] = {f.stem: self._wandb.Image(str(f)) for f in files if f.suffix == ".png"}
        shown |= {f.stem: self._wandb.Html(f) for f in files if f.suffix == ".html"}
        self._run.log(dict(metrics) | shown, step=epoch)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    """MLflow at MLFLOW_TRACKING_URI, or in files in the run's directory; a resumed run continues in the same one."""

    def __init__(self, directory: Path, config: Config) -> None:
        import mlflow

        self._error: type[Exception] = mlflow.exceptions.MlflowException
        self._entities: Any = mlflow.entities
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # of version 3: files need a word
            uri = (directory / _LOCAL_STORE).resolve().as_uri()
        with self._told():
            self._client: Any = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri if uri[:4] == "file" else None)
            self._id = self._continued(directory / _MLFLOW_RUN) or self._started(config)
        write_json(directory / _MLFLOW_RUN, {"run_id": self._id, "tracking_uri": uri})

    def _continued(self, place: Path) -> str | None:
        if not place.is_file():
            return None
        found = read_object(place).get("run_id")
        try:
            self._client.update_run(found, status="RUNNING")
        except self._error:  # removed, or of another server
            return None
        return str(found)

    def _started(self, config: Config) -> str:
        known = self._client.get_experiment_by_name("shiftcal")
        experiment = known.experiment_id if known is not None else self._client.create_experiment("shiftcal")
        run: str = self._client.create_run(experiment, run_name=_name_of(config)).info.run_id
        params = [self._entities.Param(key, str(value)) for key, value in flat(config.to_dict()).items()]
        for start in range(0, len(params), _AT_ONCE):
            self._client.log_batch(run, params=params[start : start + _AT_ONCE])
        return run

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Let what MLflow raises be an OSError, of which a run tells and continues."""
        try:
            yield
        except self._error as error:
            raise OSError(f"MLflow: {error}") from None

    def log(self, metrics: Metrics, epoch: int) -> None:
        now = int(1000 * time.time())
        found = [self._entities.Metric(name, value, now, epoch) for name, value in metrics.items()]
        with self._told():
            self._client.log_batch(self._id, metrics=found)

    def finish(self, metrics: Metrics, files: Sequence[Path], epoch: int) -> None:
        self.log(metrics, epoch)
        with self._told():
            for file in files:
                self._client.log_artifact(self._id, str(file))

    def close(self) -> None:
        with self._told():
            self._client.set_terminated(self._id)


def _name_of(config: Config) -> str:
    return f"{config.recipe}-{config.method}-{config.seed}"


# Each with the extra that has its package.
TRACKERS: dict[str, tuple[type[Tracker], str]] = {
    "tensorboard": (_TensorBoard, "tracking"),
    "wandb": (_Wandb, "tracking"),
    "mlflow": (_Mlflow, "mlflow"),
}
