"""`shiftcal audit --calibrate`: a calibrator of an audit as a file, for `predict` and `export`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shiftcal import _distributed, calibrators
from shiftcal._errors import DataError, unknown
from shiftcal.auditing.audit import NO_VALIDATION, fit_again
from shiftcal.auditing.gate import letters
from shiftcal.auditing.measure import CALIBRATORS, Fitted, fit_all
from shiftcal.inference.audit import prepare, read_tables
from shiftcal.inference.request import Wanted
from shiftcal.records import CALIBRATOR
from shiftcal.records.audit import AuditRecord

BEST = "best"
_APART = 0.05  # what a temperature fitted again may change by the order of sums, on another device


def calibrator_name(word: str) -> str:
    """Read the name of a calibrator, or `best`.

    Example:
        >>> calibrator_name("temperature-augmented")
        'temperature (augmented)'
    """
    by_letters = {letters(name): name for name in (BEST, *CALIBRATORS)}
    if letters(word) not in by_letters:
        raise unknown("calibrate", word, (BEST, *CALIBRATORS))
    return by_letters[letters(word)]


def fit_model_again(wanted: Wanted, *, progress: bool = True) -> Fitted:
    """Fit the calibrators of a model's audit that was finished earlier, on its validation images alone."""
    ready = prepare(wanted, progress=progress)
    return fit_again(
        ready.predictor, ready.images, preprocess=ready.preprocess, batch_size=wanted.batch_size, progress=progress
    )


def fit_tables_again(files: Sequence[Path], classes: Path | None = None) -> Fitted:
    """Fit the calibrators of an audit of tables that was finished earlier."""
    validation = read_tables(files, classes)[0].validation
    return fit_all({} if validation is None else {"clean": validation}, NO_VALIDATION)


def write_calibrator(out: Path, record: AuditRecord, word: str, fitted: Fitted) -> tuple[str, Path]:
    """Write one of an audit's calibrators into the audit's directory; returns its name and file."""
    name = _chosen(record, calibrator_name(word))
    calibrator, before = fitted.calibrators.get(name), record.calibrators[name].temperature
    now = fitted.tried[name].temperature if name in fitted.tried else None
    if calibrator is None or (before is not None and (now is None or abs(now - before) > _APART)):
        found = (
            f"others, to which {name} {now} fits, not {before}" if calibrator is not None else f"others, without {name}"
        )
        raise DataError("validation", "the images of the audit (remove its directory to audit again)", found)
    metadata = {
        "name": name,
        "classes": list(record.data.classes),
        "fitted_on": record.calibrators[name].fitted_on,
        "outputs": record.model.outputs,
        "model": record.model.model_dump(mode="json", exclude_none=True),
    }
    if _distributed.rank() == 0:
        calibrators.save(out / CALIBRATOR, calibrator, metadata)
    return name, out / CALIBRATOR


def _chosen(record: AuditRecord, name: str) -> str:
    """Look up which calibrator is meant, and raise if it was not fitted."""
    if name == BEST:
        if record.mended_by is None:
            fitted = any(tried.fitted_on for tried in record.calibrators.values())
            reasons = sorted({str(tried.reason) for tried in record.calibrators.values() if tried.reason})
            why = "none of the audit's lowers the ECE" if fitted else f"none was fitted: {'; '.join(reasons)}"
            raise DataError("calibrate", "the name of a calibrator that was fitted", f"{BEST}: {why}")
        return record.mended_by
    tried = record.calibrators.get(name)
    if tried is None or tried.fitted_on is None:
        reason = tried.reason if tried is not None else "the audit did not try it"
        raise DataError("calibrate", "one that could be fitted", f"{name}: {reason}")
    return name
