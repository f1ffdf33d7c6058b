"""Watching a run: JSONL and CSV files always, trackers on request."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shiftcal._io import flat, write_atomically
from shiftcal.experiments.config import Config
from shiftcal.experiments.trackers import Tracker, make_tracker
from shiftcal.records import METRICS, RunRecord

_LOG = "log.jsonl"


class Tracking:
    """Logs every epoch, in files beside the checkpoints and to the trackers that a recipe names."""

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory, self.config = directory, config
        self._trackers: list[Tracker] = []
        self._told_before = False

    def start(self) -> None:
        """Start the trackers."""
        for left in self.directory.glob(".log.*.tmp"):  # half-written by a process that was killed
            left.unlink(missing_ok=True)
        self._told_before = (self.directory / _LOG).is_file()
        self._trackers = [make_tracker(name, self.directory, self.config) for name in self.config.train.track]

    def log(self, history: list[dict[str, Any]]) -> None:
        """Write the whole history anew: a resumed run continues where its checkpoint was, not where its log ends.

        Trackers are told the last epoch; the first time all, of which another run may have trained those before.
        """
        rows = [flat(entry, "_") for entry in history]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        self.directory.mkdir(parents=True, exist_ok=True)
        write_atomically(self.directory / _LOG, lines.encode())
        write_atomically(self.directory / "log.csv", _csv(rows).encode())
        for row in rows[-1:] if self._told_before else rows:
            for tracker in self._trackers:
                tracker.log(_numbers(row), int(row["epoch"]))
        self._told_before = True

    def finish(self, record: RunRecord, files: Callable[[], Sequence[Path]]) -> None:
        """Tell the trackers what the evaluation found; `files` makes the figures and the page, if there are any."""
        made = files() if self._trackers else ()
        for tracker in self._trackers:
            tracker.finish(evaluated(record), made, len(record.history))

    def close(self) -> None:
        """Let the trackers write what they hold; the second time there are none."""
        while self._trackers:
            self._trackers.pop().close()


def evaluated(record: RunRecord) -> dict[str, float]:
    """List what an evaluation found, as numbers with a name each."""
    own = record.evaluation
    found = {f"temperature/{name}": value for name, value in own.temperatures.items()}
    for part, of in (("clean", own.clean), ("shifted", own.shifted)):
        keys = [*METRICS, *(f"{name}/ece" for name in sorted(own.scaled_by))]
        found |= {f"{part}/{key}": value for key in keys if of is not None and (value := of.value(key)) is not None}
    return {f"evaluation/{key}": float(value) for key, value in found.items()}


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if name != "epoch" and isinstance(value, int | float)}


def _csv(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
