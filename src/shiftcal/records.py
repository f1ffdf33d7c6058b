"""Typed, versioned records of runs: one model for writing and for reading. Never imports torch."""

from __future__ import annotations

import json
import lzma
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from shiftcal._errors import ParameterError, RunDirectoryError, wrong
from shiftcal._io import read_json, write_atomically

CONFIG, RECORD, WEIGHTS = "config.json", "record.json", "model.safetensors"
GRID = ("records.jsonl", "records.jsonl.xz")
SCHEMA = 3
METRICS = ("accuracy", "nll", "brier", "ece", "mce", "classwise_ece", "adaptive_ece", "smooth_ece")
_DIGITS = 5  # significant digits of a compact record

Count = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=-1e-9, le=1 + 1e-9)]  # sums of fractions may be off by a rounding


Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0, le=1e10)]


class Model(BaseModel):
    """What all parts of a record share: they do not change, and numbers are finite."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="ignore")


class Bins(Model):
    """Equal-width confidence bins: how many samples each has, their mean confidence and accuracy (0 where empty)."""

    count: tuple[Count, ...]
    confidence: tuple[Fraction, ...]
    accuracy: tuple[Fraction, ...]

    @model_validator(mode="after")
    def _same_length(self) -> Bins:
        if not len(self.count) == len(self.confidence) == len(self.accuracy) > 0:
            raise ValueError("bins should have as many counts, confidences and accuracies")
        if sum(self.count) == 0:
            raise ValueError("bins should hold some samples")
        return self


class Histogram(Model):
    """How many predictions were right and wrong, in equal steps of confidence."""

    right: tuple[Count, ...]
    wrong: tuple[Count, ...]


class Measured(Model):
    """Metrics of predictions, as fractions (NLL in nats); None where an earlier version did not measure one."""

    accuracy: Fraction | None = None
    nll: float | None = None
    brier: float | None = None
    ece: Fraction | None = None
    mce: Fraction | None = None
    classwise_ece: Fraction | None = None
    adaptive_ece: Fraction | None = None
    smooth_ece: float | None = None
    bins: Bins | None = None


class Cell(Measured):
    """One test set: its metrics as the model is, and after each temperature.

    Attributes:
        shift: Name of the shift; None for a set that is not shifted.
        severity: Its severity, from 1.
        n: How many images it has.
        scaled: Metrics after the temperature of each name, "clean" and "shift_aware".
        histogram: Right and wrong predictions by confidence.
    """

    accuracy: Fraction
    nll: float
    ece: Fraction
    shift: str | None = None
    severity: Annotated[int, Field(ge=1, le=100)] | None = None
    n: Count | None = None
    scaled: dict[str, Measured] = {}
    histogram: Histogram | None = None

    def value(self, key: str) -> float | None:
        """Return a metric by its key: a name in METRICS, or a temperature and a name, as in "clean/ece"."""
        return _value(self, key)


class Mean(Measured):
    """The mean over test sets, before and after each temperature."""

    accuracy: Fraction
    nll: float
    ece: Fraction
    scaled: dict[str, Measured] = {}

    def value(self, key: str) -> float | None:
        """Return a metric by its key, see `Cell.value`."""
        return _value(self, key)


def _value(of: Cell | Mean, key: str) -> float | None:
    temperature, slash, name = key.rpartition("/")
    measured = of.scaled.get(temperature) if slash else of
    found: float | None = getattr(measured, name, None)
    return found


class Reliability(Model):
    """Bins of the clean test set and of all shifted ones together, also for each class by itself."""

    clean: Bins
    shifted: Bins | None = None
    clean_by_class: tuple[Bins, ...] = ()
    shifted_by_class: tuple[Bins, ...] = ()


class Corruptions(Model):
    """Where corrupted images came from: made on the fly, or read from a folder."""

    constants: str | None = None
    frost: str | None = None
    read_from: str | None = None


def _with_clean(temperatures: dict[str, float]) -> dict[str, float]:
    if "clean" not in temperatures:
        raise ValueError("temperatures should have one named clean")
    return temperatures


class Evaluation(Model):
    """A model on its clean and shifted test sets.

    Attributes:
        temperatures: What was fitted on validation images, by name; "clean" on the images as they are, "shift_aware"
            on these and augmented ones together, and what each set of them alone would give.
        validation: The validation images.
        clean: The clean test set.
        clean_is_validation: Whether the validation images stand for a clean test set, which the source does not have.
        shifts: A cell for each shift and severity.
        shifted: Their mean; None without shifts.
        other_tests: Further test sets, which are no part of the mean.
        reliability: Bins over all.
        corruptions: Where corrupted images came from.
        epoch: The epoch that the weights are from, counted from 1.
    """

    temperatures: Annotated[dict[str, Positive], AfterValidator(_with_clean)]
    validation: Cell
    clean: Cell
    clean_is_validation: bool = False
    shifts: tuple[Cell, ...] = ()
    shifted: Mean | None = None
    other_tests: dict[str, Cell] = {}
    reliability: Reliability
    corruptions: Corruptions = Corruptions()
    epoch: int | None = None

    @property
    def scaled_by(self) -> set[str]:
        """The temperatures after which the clean test set was measured."""
        return set(self.clean.scaled)


class Epoch(Model):
    """One epoch of training."""

    epoch: int
    active: bool = False
    filtered: int = 0
    learning_rate: float = 0.0
    loss: float
    accuracy: float
    conflict_rate: float | None = None
    mean_cosine: float | None = None
    skipped: int | None = None
    seconds: Seconds
    images_per_second: float | None = None
    memory: int | None = None
    validation: dict[str, float] = {}


class Kept(Model):
    """Which weights the run kept, of which epoch, and the checksum of their file."""

    kept: Literal["last", "best_nll", "best_ece", "average"] = "last"
    epoch: int | None = None
    sha256: str | None = None


class DataSeen(Model):
    """The data of a run: its name, its classes in order, and how many images each part has."""

    name: str
    classes: tuple[str, ...] = ()
    counts: dict[str, int] = {}


class Environment(Model):
    """The software and the machine."""

    versions: dict[str, str | None] = {}
    machine: dict[str, Any] = {}
    revision: str | None = None


def _with_sections(config: dict[str, Any]) -> dict[str, Any]:
    for name in ("data", "evaluation"):
        if not isinstance(config.get(name), dict):
            raise ValueError(f"config should have a section {name}")  # noqa: TRY004 (pydantic reports these)
    return config


def _known_schema(number: int) -> int:
    if not 1 <= number <= SCHEMA:
        raise ValueError(f"schema should be 1 to {SCHEMA}")
    return number


class RunRecord(Environment):
    """What was run, on what, and what was measured."""

    schema_version: Annotated[int, AfterValidator(_known_schema)] = Field(SCHEMA, alias="schema")
    recipe: str
    method: str
    seed: int
    config: Annotated[dict[str, Any], AfterValidator(_with_sections)]
    device: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    started: str | None = None
    seconds: dict[str, Seconds] = {}
    data: DataSeen | None = None
    history: tuple[Epoch, ...] = ()
    weights: Kept = Kept()
    evaluation: Evaluation
    also: dict[str, Evaluation] = {}
    before: Evaluation | None = None
    evaluated_again: Environment | None = None

    def to_json(self) -> str:
        """Write all of it as JSON in one line, without what is not known."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


def parse_record(content: Any, where: object) -> RunRecord:
    """Check and convert what a file holds; records of earlier versions are brought up to date."""
    if not isinstance(content, dict):
        raise RunDirectoryError("record", "a run's record", f"{where}, which holds a {type(content).__name__}")
    try:
        return RunRecord.model_validate(upgraded(content))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "it"
        found = f"{where}: {place}: {first['msg']} (and {error.error_count() - 1} more)"
        raise RunDirectoryError("record", "a run's record", found.removesuffix(" (and 0 more)")) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:  # an older one that lacks what it should have
        raise RunDirectoryError("record", "a run's record", f"{where}: {type(error).__name__}: {error}") from None


def read_record(path: Path) -> RunRecord:
    """Read a run's record."""
    try:
        return parse_record(read_json(path), path)
    except ParameterError as error:
        hint = " The command that made the run makes it again, with --resume."
        raise RunDirectoryError(error.name, error.should, error.found, hint) from None


def write_record(path: Path, record: RunRecord) -> None:
    """Write a run's record."""
    write_atomically(path, (record.to_json() + "\n").encode())


def upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """Bring a record of schema 1 or 2 up to date."""
    schema = content.get("schema")
    if schema == SCHEMA or schema not in (1, 2):
        return content
    new = content | {"schema": SCHEMA, "evaluation": _upgraded(content["evaluation"])}
    if content.get("before"):
        new["before"] = _upgraded(content["before"])
    new["also"] = {name: _upgraded(found) for name, found in content.get("also", {}).items()}
    return new


def _upgraded(old: dict[str, Any]) -> dict[str, Any]:
    reliability, by_class = old["reliability"], old.get("class_reliability", {})
    return {
        "temperatures": old.get("temperatures") or {"clean": old["temperature"]},
        "validation": _upgraded_cell(old["validation"]),
        "clean": _upgraded_cell(old["id"]),
        "clean_is_validation": old.get("id_is_validation", False),
        "shifts": [_upgraded_cell(row) for row in old["shifts"]],
        "shifted": _upgraded_cell(old["shifted"]) if old["shifted"] else None,
        "other_tests": {name: _upgraded_cell(row) for name, row in old.get("besides", {}).items()},
        "reliability": {
            "clean": reliability["id"],
            "shifted": reliability["shifted"],
            "clean_by_class": by_class.get("id") or (),
            "shifted_by_class": by_class.get("shifted") or (),
        },
        "corruptions": old.get("corruptions") or {},
        "epoch": old.get("epoch"),
    }


def _upgraded_cell(row: dict[str, Any]) -> dict[str, Any]:
    return row if "scaled" in row else row | {"scaled": {"clean": {"ece": row["ece_ts"]}}}


def find_runs(directory: Path) -> list[Path]:
    """Find the runs in a directory: itself, or those directly below it, in order of their names."""
    if not directory.is_dir():
        raise RunDirectoryError("directory", "the directory of a run, or one that holds runs", str(directory))
    names = (CONFIG, RECORD)
    if any((directory / name).is_file() for name in names):
        return [directory]
    found = {path.parent for name in names for path in directory.glob(f"*/{name}")}
    if not found:
        raise RunDirectoryError(
            "directory", "the directory of a run, or one that holds runs", f"{directory}, without {CONFIG}"
        )
    return sorted(found)


def load_records(place: Path) -> list[RunRecord]:
    """Read the records of finished runs: of a directory of runs, of one run, or of a grid's file of records."""
    return load_finished(place)[0]


def load_finished(place: Path) -> tuple[list[RunRecord], dict[str, str]]:
    """Read the records of finished runs, and name those that were left out, with the reason; a warning tells them too.

    Where nothing can be read, that is an error.
    """
    if (place / RECORD).is_file():
        return [read_record(place / RECORD)], {}
    grid = next((place / name for name in GRID if (place / name).is_file()), place if place.is_file() else None)
    found = _grid_records(grid) if grid is not None else {run.name: _run_record(run) for run in find_runs(place)}
    records = [record for record in found.values() if isinstance(record, RunRecord)]
    left_out = {name: record for name, record in found.items() if isinstance(record, str)}
    if not records:
        expected = "one with finished runs (`shiftcal train … --resume` finishes one)"
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise RunDirectoryError("directory", expected, f"{place}, with {reasons}")
    if left_out:
        listed = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        warnings.warn(f"Left out, {len(left_out)} of {len(found)} runs: {listed}.", stacklevel=2)
    return records, left_out


def _run_record(run: Path) -> RunRecord | str:
    """Read a run's record, or tell why there is none."""
    if not (run / RECORD).is_file():
        return "not finished"
    try:
        return read_record(run / RECORD)
    except ParameterError as error:
        return f"damaged ({error.found})"


def write_grid(path: Path, records: Iterable[RunRecord]) -> None:
    """Write records in a compact form, a line each, what was measured rounded to five digits; .xz compresses."""
    trees = (json.loads(record.to_json()) for record in records)
    exact = (_rounded(tree) | {"config": tree["config"]} for tree in trees)
    data = "".join(json.dumps(tree, separators=(",", ":")) + "\n" for tree in exact).encode()
    write_atomically(path, lzma.compress(data) if path.suffix == ".xz" else data)


def read_grid(path: Path) -> list[RunRecord]:
    """Read a grid's file of records; damage is an error."""
    records = [parse_record(json.loads(line), f"{path}, line {number}") for number, line in _lines(path)]
    if not records:
        raise wrong("path", "a file with a record in each line", f"{path}, which has none")
    return records


def _grid_records(path: Path) -> dict[str, RunRecord | str]:
    """Read each line of a grid's file, or tell why it cannot be read."""
    found: dict[str, RunRecord | str] = {}
    for number, line in _lines(path):
        try:
            found[f"line {number}"] = parse_record(json.loads(line), f"{path}, line {number}")
        except (ValueError, RecursionError) as error:
            found[f"line {number}"] = f"damaged ({error.found if isinstance(error, ParameterError) else error})"
    if not found:
        raise wrong("path", "a file with a record in each line", f"{path}, which has none")
    return found


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        data = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        return [(number, line) for number, line in enumerate(data.decode().splitlines(), start=1) if line.strip()]
    except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
        raise wrong("path", "a file with a record in each line", f"{path}: {error}") from None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        short = float(f"{value:.{_DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
