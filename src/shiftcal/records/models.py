"""What a record holds: one tree of pydantic models, for writing and for reading."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

SCHEMA = 3
# Keys in which runs may differ that are otherwise the same: they decide how fast a run is, not what it does.
SPEED_KEYS = frozenset({"data.workers", "engine.capture", "engine.checkpoint_every", "engine.compile", "train.track"})
METRICS = ("accuracy", "nll", "brier", "ece", "mce", "classwise_ece", "adaptive_ece", "smooth_ece")

Count = Annotated[int, Field(ge=0, le=10**12)]  # images; more could not be added up as floats
Number = Annotated[float, Field(ge=-1e150, le=1e150)]  # squares of more could not be added up
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

    @model_validator(mode="after")
    def _same_length(self) -> Histogram:
        if not len(self.right) == len(self.wrong) > 0:
            raise ValueError("a histogram should have as many steps for right and wrong predictions")
        return self


class Measured(Model):
    """Metrics of predictions, as fractions (NLL in nats); None where an earlier version did not measure one."""

    accuracy: Fraction | None = None
    nll: Number | None = None
    brier: Number | None = None
    ece: Fraction | None = None
    mce: Fraction | None = None
    classwise_ece: Fraction | None = None
    adaptive_ece: Fraction | None = None
    smooth_ece: Number | None = None
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
    nll: Number
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
    nll: Number
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

    @model_validator(mode="after")
    def _with_mean(self) -> Evaluation:
        if self.shifts and self.shifted is None:
            raise ValueError("an evaluation with shifts should have their mean, shifted")
        steps = {len(c.histogram.right) for c in (self.clean, *self.shifts) if c.histogram is not None}
        if len(steps) > 1:
            raise ValueError("histograms of an evaluation should have as many steps each")
        return self

    @property
    def scaled_by(self) -> set[str]:
        """The temperatures after which the clean test set was measured."""
        return set(self.clean.scaled)


class Epoch(Model):
    """One epoch of training.

    Attributes:
        test: Metrics of the sets "clean" and "shifted", where `evaluation.every` asked.
        trained_by: The run of the same grid that trained it, where this run continues from another's warm-up.
        noise: What `evaluation.noise` asked for, by the parameters' scope, "all" and "classifier": means over pairs of
            batches, and their standard errors (`…_error`).
    """

    epoch: Annotated[int, Field(ge=0, le=10**9)]
    active: bool = False
    trained_by: str | None = None
    filtered: int = 0
    learning_rate: Number = 0.0
    loss: Number
    accuracy: Number
    conflict_rate: Number | None = None
    mean_cosine: Number | None = None
    skipped: int | None = None
    seconds: Seconds
    images_per_second: float | None = None
    memory: int | None = None
    validation: dict[str, float] = {}
    test: dict[str, dict[str, float]] = {}
    noise: dict[str, dict[str, float]] = {}


class Kept(Model):
    """Which weights the run kept, of which epoch, and the checksum of their file."""

    kept: Literal["last", "best_nll", "best_ece", "average"] = "last"
    epoch: int | None = None
    sha256: str | None = None


class DataSeen(Model):
    """The data of a run: its name, its classes in order, how many images each part has, and how they become inputs."""

    name: str
    classes: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    preprocessing: dict[str, Any] = {}


class Environment(Model):
    """The software and the machine."""

    versions: dict[str, str | None] = {}
    machine: dict[str, Any] = {}
    revision: str | None = None


def _with_sections(config: dict[str, Any]) -> dict[str, Any]:
    for name in ("data", "evaluation"):
        if not isinstance(config.get(name), dict):
            raise ValueError(f"config should have a section {name}")  # noqa: TRY004 (pydantic reports these)
    if not _finite(config):
        raise ValueError("config should have finite numbers")
    return config


def _finite(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


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
