"""Watching a run: JSONL and CSV files always, TensorBoard and Weights & Biases on request (extra `tracking`)."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

from shiftcal._errors import unknown, wrong
from shiftcal._io import write_atomically
from shiftcal.experiments.config import Config


class Tracking:
    """Logs every epoch, in files beside the checkpoints and to the trackers that a recipe names."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory = directory
        for left in directory.glob(".log.*.tmp"):  # half-written by a process that was killed
            left.unlink(missing_ok=True)
        self._trackers = [_make(name, directory, config) for name in config.train.track]

    def log(self, history: list[dict[str, Any]]) -> None:
        """Write the whole history anew: a resumed run continues where its checkpoint was, not where its log ends."""
        rows = [flat(entry) for entry in history]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self.directory / "log.jsonl", lines.encode())
        write_atomically(self.directory / "log.csv", _csv(rows).encode())
        for tracker in self._trackers:
            tracker(rows[-1])

    def close(self) -> None:
        """Let the trackers write what they hold."""
        for tracker in self._trackers:
            tracker.close()


def flat(entry: dict[str, Any]) -> dict[str, Any]:
    """Lay a nested entry out flat.

    Example:
        >>> flat({"loss": 0.5, "validation": {"ece": 0.1}})
        {'loss': 0.5, 'validation_ece': 0.1}
    """
    row: dict[str, Any] = {}
    for key, value in entry.items():
        row |= {f"{key}_{k}": v for k, v in flat(value).items()} if isinstance(value, dict) else {key: value}
    return row


def _csv(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _make(name: str, directory: Path, config: Config) -> Any:
    if name not in _TRACKERS:
        raise unknown("train.track", name, _TRACKERS)
    try:
        return _TRACKERS[name](directory, config)
    except ImportError as error:
        expected = "of installed trackers (pip install 'shiftcal[tracking]')"
        raise wrong("train.track", expected, f"{name} ({error})") from None


class _TensorBoard:
    def __init__(self, directory: Path, config: Config) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory / "tensorboard"))
        self._writer.add_text("config", json.dumps(config.to_dict(), indent=1))

    def __call__(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, float(value), row["epoch"])

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """Weights & Biases; WANDB_MODE=offline keeps everything on this machine."""

    def __init__(self, directory: Path, config: Config) -> None:
        import wandb

        name = f"{config.recipe}-{config.method}-{config.seed}"
        self._run: Any = wandb.init(
            project="shiftcal", name=name, dir=str(directory), config=config.to_dict(), resume="allow"
        )

    def __call__(self, row: dict[str, Any]) -> None:
        self._run.log({name: value for name, value in row.items() if name != "epoch"}, step=row["epoch"])

    def close(self) -> None:
        self._run.finish()


_TRACKERS: dict[str, Any] = {"tensorboard": _TensorBoard, "wandb": _Wandb}
