"""A model that a user names, with a calibrator: what `predict` and `export` make probabilities with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shiftcal import calibrators
from shiftcal._errors import DataError, wrong
from shiftcal.auditing.predictors import TWO_OUTPUTS, Calibrated, Predictor
from shiftcal.calibrators.store import class_names, read_metadata
from shiftcal.data.match import indices_of
from shiftcal.inference.open_model import Opened
from shiftcal.inference.request import Wanted, decide_preprocessing, open_wanted
from shiftcal.records import CALIBRATOR


@dataclass(frozen=True)
class Classifier:
    """A model with a calibrator, on the CPU.

    Attributes:
        module: Takes preprocessed images, gives probabilities.
        opened: The model.
        classes: The names of the probabilities' columns, if they are known.
        known: How images become its input, see `Opened.known`.
        calibrator: The kind of its calibrator, if it has one.
        notes: What a user must know.
    """

    module: Calibrated
    opened: Opened
    classes: tuple[str, ...] | None
    known: dict[str, Any]
    calibrator: str | None
    notes: tuple[str, ...] = ()

    def check_width(self, width: int) -> None:
        """Raise unless there are several probabilities, and as many names."""
        if width < 2:
            raise DataError("model", f"one with {TWO_OUTPUTS}", f"{width} output")
        if self.classes is not None and len(self.classes) != width:
            raise DataError("classes", f"{width} names, as the model has outputs", len(self.classes))


def open_classifier(wanted: Wanted, calibrator: Path | None) -> Classifier:
    """Open a model and a calibrator. Columns are those that the calibrator was fitted on, matched by name."""
    opened, names = open_wanted(wanted)
    known = decide_preprocessing(wanted, opened, None)
    outputs = wanted.outputs or opened.outputs or "logits"
    if calibrator is None:
        module = Calibrated(Predictor(opened.model, outputs))
        return Classifier(module.eval(), opened, names, known, opened.calibrator)
    if opened.calibrator is not None:
        expected = f"left out: the model is calibrated already, by {opened.calibrator}"
        raise wrong("calibrator", expected, str(calibrator))
    fitted, columns, notes = calibrators.load(calibrator), None, []
    described = read_metadata(calibrator)
    before, other = described.get("outputs", "logits"), _other_model(described, opened)
    if other is not None:
        notes.append(f"the calibrator was fitted on another model's file, {other}")
    if before != outputs and not fitted.shift_invariant:
        expected = f"one for {outputs}, which the model gives (temperature, histogram and isotonic are for both)"
        raise DataError("calibrator", expected, f"{type(fitted).__name__} fitted on {before}")
    own = class_names(calibrator)
    if own is not None and names is not None and own != names:
        columns = indices_of(own, names).tolist()
        if len(own) < len(names):
            notes.append(f"the softmax is over the {len(own)} of {len(names)} classes that the calibrator knows")
    module = Calibrated(Predictor(opened.model, outputs, columns), fitted)
    return Classifier(module.eval(), opened, own or names, known, type(fitted).__name__, tuple(notes))


def own_calibrator(model: str) -> Path | None:
    """Return the calibrator in the folder of a model, which `shiftcal card` puts there, if there is one."""
    path = Path(model) / CALIBRATOR
    return path if path.is_file() else None


def _other_model(described: Mapping[str, Any], opened: Opened) -> str | None:
    """Name the model that a calibrator was fitted on, if its file is another than the one that was opened."""
    model = described.get("model")
    digest = model.get("sha256") if isinstance(model, dict) else None
    if not isinstance(model, dict) or None in (digest, opened.sha256) or digest == opened.sha256:
        return None
    return str(model.get("name"))
