"""The record of an audit: what a model's confidence is worth, clean and under shift, and what would mend it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from shiftcal._errors import DataError
from shiftcal._io import read_json, write_atomically
from shiftcal.records.models import (
    Bins,
    Cell,
    Corruptions,
    Environment,
    Fraction,
    Mean,
    Measured,
    Model,
    Positive,
    Seconds,
)

AUDIT, AUDIT_SCHEMA = "audit.json", 1
Signed = Annotated[float, Field(ge=-1 - 1e-9, le=1 + 1e-9)]


class SetsMeasured(Model):
    """Conformal sets on a test set: how often they hold the true class, and their mean size."""

    coverage: Fraction
    size: float


class Trust(Model):
    """What an audit measures beside the metrics of any evaluation.

    Attributes:
        confidence: Mean confidence.
        gap: Mean confidence − accuracy: above 0, too sure.
        noise_floor: The ECE that a perfectly calibrated model with these confidences shows at this number of images.
        ece_low: Lower end of the ECE's 95 % interval.
        ece_high: Upper end.
        aurc: Area under the risk–coverage curve.
        excess_aurc: What it is above that of the best order.
        accuracy_at: Accuracy of the most confident share of the images, by that share in %.
        brier_calibration: The part of the Brier score that calibration would mend.
        brier_refinement: The rest.
        sets: Conformal sets, by kind.
    """

    confidence: Fraction
    gap: Signed
    noise_floor: Fraction
    ece_low: Fraction
    ece_high: Fraction
    aurc: Fraction
    excess_aurc: Fraction
    accuracy_at: dict[str, Fraction] = {}
    brier_calibration: float
    brier_refinement: float
    sets: dict[str, SetsMeasured] = {}


class AuditCell(Cell, Trust):
    """One test set.

    Attributes:
        by_class: The bins of each class by itself; the clean set alone has these, and the next two.
        class_counts: How many images each class has.
        class_hits: How many of these are classified right.
    """

    by_class: tuple[Bins, ...] = ()
    class_counts: tuple[int, ...] = ()
    class_hits: tuple[int, ...] = ()


class AuditMean(Mean, Trust):
    """The mean over shifted test sets; the interval is that of the mean."""


class Tried(Model):
    """A calibrator: what it was fitted on, or why not, and what it would change.

    Attributes:
        fitted_on: In words; None where it could not be fitted.
        reason: Why it was not fitted.
        temperature: If it is one.
        clean: Metrics after it on the clean test set.
        shifted: Their means under shift.
    """

    fitted_on: str | None = None
    reason: str | None = None
    temperature: Positive | None = None
    clean: Measured | None = None
    shifted: Measured | None = None


class ModelSeen(Model):
    """The audited model: its name, what kind of thing it is, its file's checksum, and what it gives."""

    name: str
    kind: str
    sha256: str | None = None
    outputs: str = "logits"
    restricted: str | None = None


class AuditedData(Model):
    """The data: its name, its classes in the order of the model's outputs, and how many images each part has."""

    name: str
    classes: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    preprocessing: dict[str, Any] = {}


def _known(number: int) -> int:
    if not 1 <= number <= AUDIT_SCHEMA:
        raise ValueError(f"schema should be 1 to {AUDIT_SCHEMA}, not {number} (audit again with this version)")
    return number


class AuditRecord(Environment):
    """What was audited, on what, what was measured and what it says.

    Attributes:
        validation: The validation images, on which calibrators and sets were fitted.
        clean: The clean test set.
        shifts: A cell for each shift and severity.
        shifted: Their mean.
        calibrators: What was tried, by name.
        mended_by: The calibrator with the lowest ECE under shift, if it mends something.
        sets: Why conformal sets were not fitted, by kind.
        warnings: What a reader must know.
        verdict: The verdict, in sentences.
    """

    schema_version: Annotated[int, AfterValidator(_known)] = Field(AUDIT_SCHEMA, alias="audit_schema")
    model: ModelSeen
    data: AuditedData
    bins: int = 15
    started: str | None = None
    seconds: dict[str, Seconds] = {}
    device: dict[str, Any] = {}
    validation: AuditCell | None = None
    clean: AuditCell
    shifts: tuple[AuditCell, ...] = ()
    shifted: AuditMean | None = None
    calibrators: dict[str, Tried] = {}
    mended_by: str | None = None
    sets: dict[str, str] = {}
    corruptions: Corruptions = Corruptions()
    warnings: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Write all of it as JSON, without what is not known."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


def is_audit(path: Path) -> bool:
    """Tell whether a path is an audit's record, or a directory that holds one."""
    return (path / AUDIT).is_file() if path.is_dir() else path.name == AUDIT


def audits_in(places: Sequence[Path]) -> list[Path]:
    """Replace directories that hold audits, one in each subdirectory, by these; other places stay."""
    found: list[Path] = []
    for place in places:
        inner = sorted(file.parent for file in place.glob(f"*/{AUDIT}")) if place.is_dir() else []
        runs = any(place.glob("*/config.json")) if inner else False
        found += inner if inner and not is_audit(place) and not runs else [place]
    return found


def read_audit(path: Path) -> AuditRecord:
    """Read an audit's record: the file, or the directory that holds it."""
    file = path / AUDIT if path.is_dir() else path
    if not file.is_file():
        raise DataError("audit", f"an audit's {AUDIT} (`shiftcal audit` writes one)", str(file))
    content = read_json(file)
    try:
        if not isinstance(content, dict) or "audit_schema" not in content:
            raise DataError("audit", f"an audit's {AUDIT}", f"{file}, which is none")
        return AuditRecord.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        raise DataError("audit", f"an audit's {AUDIT}", f"{file}: {place}: {first['msg']}") from None


def write_audit(path: Path, record: AuditRecord) -> None:
    """Write an audit's record."""
    write_atomically(path, (record.to_json() + "\n").encode())
