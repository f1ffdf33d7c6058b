"""What a shared folder holds of a run: its weights, config and record, without the paths of this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiftcal import calibrators
from shiftcal._errors import DataError
from shiftcal._io import read_object, to_json
from shiftcal.calibrators.store import class_names, file_of, read_metadata
from shiftcal.experiments.finished import check_finished, check_weights
from shiftcal.records import CALIBRATOR, CONFIG, RECORD, WEIGHTS, RunRecord, read_record

_PATHS = (("data", "root"), ("train", "weights"), ("evaluation", "corrupted"), ("evaluation", "frost"))


@dataclass(frozen=True)
class Shared:
    """A run's record, and files by their name in a folder: as content, or as a path to copy."""

    record: RunRecord
    files: dict[str, bytes | Path]


def shared_run(run: Path) -> Shared:
    """Read what is shared of a finished run. Nothing that it names is imported."""
    check_finished(run)
    record = read_record(run / RECORD)
    digest = check_weights(run, record)
    weights = record.weights.model_copy(update={"sha256": digest})
    record = record.model_copy(update={"config": without_paths(record.config), "weights": weights})
    config = to_json(without_paths(read_object(run / CONFIG)))
    return Shared(
        record, {WEIGHTS: run / WEIGHTS, CONFIG: config, RECORD: (_without_places(record).to_json() + "\n").encode()}
    )


def without_paths(config: dict[str, Any]) -> dict[str, Any]:
    """Leave only the last part of every path in a run's config; data is looked for where the reader has it."""
    tree: dict[str, Any] = json.loads(json.dumps(config))
    for section, key in _PATHS:
        place = tree.get(section)
        if isinstance(place, dict) and isinstance(place.get(key), str):
            place[key] = None if key == "root" else Path(place[key]).name
    if isinstance(tree.get("finetuned_from"), str):
        tree["finetuned_from"] = Path(tree["finetuned_from"]).name
    return tree


def _without_places(record: RunRecord) -> RunRecord:
    made = record.evaluation.corruptions
    given = {"frost": made.frost, "read_from": made.read_from}
    names = {key: Path(value).name if value is not None else None for key, value in given.items()}
    corruptions = made.model_copy(update=names)
    return record.model_copy(update={"evaluation": record.evaluation.model_copy(update={"corruptions": corruptions})})


def checked_calibrator(path: Path, classes: tuple[str, ...]) -> tuple[str, dict[str, bytes | Path]]:
    """Read a calibrator's kind, and return its file; one of other classes is refused."""
    path = file_of(path)
    kind = type(calibrators.load(path)).__name__
    own, count = class_names(path), read_metadata(path).get("number_of_classes")
    if classes and (count != len(classes) if own is None else not set(own) <= set(classes)):
        expected = f"one for the model's {len(classes)} classes"
        raise DataError("calibrator", expected, f"{path}, for {', '.join(own or (f'{count} others',))}")
    return kind, {CALIBRATOR: path}
