"""Fitted calibrators in files: a safetensors file with the state, and what it belongs to as JSON beside it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from shiftcal._errors import DataError, reason_of, wrong
from shiftcal._io import write_atomically
from shiftcal.calibrators.base import Calibrator
from shiftcal.calibrators.histogram import HistogramBinning
from shiftcal.calibrators.isotonic import IsotonicRegression
from shiftcal.calibrators.rho_norm import RhoNormScaling
from shiftcal.calibrators.temperature import TemperatureScaling
from shiftcal.calibrators.vector import VectorScaling
from shiftcal.records import CALIBRATOR

# What a file may name: nothing else is looked up, and nothing in a file is executed.
KINDS: dict[str, type[Calibrator]] = {
    kind.__name__: kind
    for kind in (HistogramBinning, IsotonicRegression, RhoNormScaling, TemperatureScaling, VectorScaling)
}
_KEY = "shiftcal"
_EXPECTED = "a calibrator's file (`shiftcal audit … --calibrate best` writes one)"


def save(path: str | Path, calibrator: Calibrator, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a fitted calibrator.

    Args:
        path: The file, which is replaced.
        calibrator: A fitted calibrator of this package.
        metadata: What else to say in JSON: `classes`, the names of the logits' columns in order, `fitted_on` in words,
            and `outputs`, "probabilities" where the logits were logarithms of these.

    Example:
        >>> import tempfile
        >>> scaling = TemperatureScaling().fit(torch.tensor([[4.0, 0.0]] * 3), torch.tensor([0, 0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Path(folder) / "calibrator.safetensors", scaling, {"classes": ["cat", "dog"]})
        ...     load(Path(folder) / "calibrator.safetensors").temperature
        5.0
    """
    kind = type(calibrator).__name__
    if KINDS.get(kind) is not type(calibrator):
        raise wrong("calibrator", f"one of {', '.join(KINDS)}", kind)
    state = calibrator.state_dict()
    if "classes" not in state:
        raise wrong("calibrator", "fitted", f"{kind} without a state")
    names = list(inspect.signature(type(calibrator)).parameters)
    described = {
        **(metadata or {}),
        "kind": kind,
        "arguments": {name: getattr(calibrator, name) for name in names},
        "number_of_classes": int(state["classes"]),
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    write_atomically(Path(path), safetensors.torch.save(tensors, {_KEY: json.dumps(described)}))


def file_of(path: str | Path) -> Path:
    """Return a calibrator's file: the path itself, or the one in a directory, such as an audit's."""
    path = Path(path)
    return path / CALIBRATOR if path.is_dir() else path


def load(path: str | Path) -> Calibrator:
    """Read a fitted calibrator; a damaged file, or one of something else, is an error that names it."""
    described, tensors = _read(path)
    kind = described.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise DataError("calibrator", _EXPECTED, f"{path}, which has the kind {kind!r}")
    try:
        calibrator = KINDS[kind](**described.get("arguments", {}))
        calibrator.load_state_dict(tensors)
        columns = int(tensors["classes"])
        usable = bool(calibrator(torch.linspace(-1, 1, 3 * columns, dtype=torch.float64).view(3, -1)).isfinite().all())
    except Exception as error:  # whatever a forged state does not fit
        raise DataError("calibrator", "a whole file", f"{path}: {reason_of(error)}") from None
    if not usable:
        raise DataError("calibrator", "a whole file", f"{path}, whose numbers are not finite")
    return calibrator


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Read what a calibrator's file says: kind, arguments, number_of_classes, classes, fitted_on, outputs."""
    return _read(path)[0]


def class_names(path: str | Path) -> tuple[str, ...] | None:
    """Read the names of the columns that a calibrator was fitted on, in order; None where its file has none."""
    described = read_metadata(path)
    names, count = described.get("classes"), described.get("number_of_classes")
    if not isinstance(names, list) or not names:
        return None
    if len(names) != count or not all(isinstance(name, str) for name in names):
        raise DataError("calibrator", f"a file with {count} names of classes", f"{path} with {len(names)}")
    return tuple(names)


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    path = file_of(path)
    if not path.is_file():
        raise DataError("calibrator", _EXPECTED, str(path))
    try:
        with safetensors.safe_open(path, "pt") as file:
            described = json.loads((file.metadata() or {}).get(_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise DataError("calibrator", _EXPECTED, f"{path}: {reason_of(error)}") from None
    if not isinstance(described, dict):
        raise DataError("calibrator", _EXPECTED, f"{path}, which does not say what it is")
    return described, tensors
