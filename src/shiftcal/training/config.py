"""Configuration: one tree of frozen dataclasses, read from a TOML recipe, with overrides by dotted key."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from shiftcal import methods
from shiftcal._checks import did_you_mean, unknown, wrong
from shiftcal.records import CONFIG, read_object


@dataclass(frozen=True)
class DataConfig:
    """Which data set, and what its function takes: root to holdout are for images on disk, the rest is for shapes."""

    name: str = "shapes"
    seed: int = 0
    root: str | None = None
    size: int | None = None
    fit: str | None = None
    loader: str | None = None
    workers: int | None = None
    holdout: str | None = None
    train: int = 6000
    validation: int = 1000
    test: int = 2000
    texture_match: float = 0.65
    texture_amplitude: float = 0.06


@dataclass(frozen=True)
class TrainConfig:
    """Model and what it takes, optimiser, schedule, length, and what is done to every training image.

    `weights` are what the model starts from, a file or "pretrained"; images become `input_size` pixels square and are
    normalised with `mean` and `std` where the recipe should overrule what the data set and the model say. A step takes
    `accumulate` batches and averages their gradients, which are rectified together or, with `rectify_per`
    "micro_batch", one by one. With `sync_batch_norm` several processes share the statistics of batch-norm. `keep` says
    which weights are evaluated and written, by default what the method's row says; `average_decay` is that of their
    average over the steps.
    """

    model: str = "small"
    weights: str | None = None
    input_size: int | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    epochs: int = 20
    batch_size: int = 64
    accumulate: int = 1
    rectify_per: str = "batch"
    optimizer: str = "sgd"
    learning_rate: float = 0.05
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "one_cycle"
    warmup: float = 0.2
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    clip_norm: float | None = None
    loss_reduction: str = "mean"
    start: float = 4 / 7
    augment: str = "crop_flip"
    sync_batch_norm: bool = False
    keep: str | None = None
    average_decay: float = 0.999
    track: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineConfig:
    """How the step runs: "auto" takes bfloat16 and a CUDA graph on a GPU, and compiles where the run is long.

    `deterministic` runs give the same result every time on one machine, also on a GPU, and are slower there.
    """

    precision: str = "auto"
    capture: str = "auto"
    compile: str = "auto"
    deterministic: bool = False


@dataclass(frozen=True)
class FilterConfig:
    """Low-pass filter: share ρ of the images, the qualities λ that "dct" draws from, and the radii of "fft".

    The rest is as the method's row says unless it is set here, see `methods.LowPass`.
    """

    ratio: float = 0.05
    qualities: tuple[int, ...] = (15, 18, 25)
    radii: tuple[float, ...] = (0.8, 0.6, 0.4)
    filter: str | None = None
    subsampling: str | None = None
    redraw: bool | None = None
    after_augment: bool | None = None
    truncate: bool | None = None


@dataclass(frozen=True)
class GammaConfig:
    """Focusing parameters γ: of the baselines dual focal loss and BSCE-GRA, and of FGR and its ablations.

    `released` is that of FGR as its authors released it. `runner_up` is the reading of the dual focal loss, by default
    that of the method's row.
    """

    dfl: float = 3.0
    fgr: float = 3.0
    bsce_gra: float = 1.0
    released: float = 5.0
    runner_up: str | None = None


@dataclass(frozen=True)
class ConstraintConfig:
    """Weight of the constraint where a rule adds it; the rest is as the method's row says unless it is set here."""

    weight: float = 1.0
    scope: str | None = None
    centres: str | None = None


@dataclass(frozen=True)
class FinetuneConfig:
    """Training the classifier alone on a frozen network: what differs from training it whole.

    `views` are kept for each training image, and `filtered_views` of it low-pass filtered; 0 views keep none and send
    every batch through the network.
    """

    views: int = 4
    filtered_views: int = 4
    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    gamma: float = 3.0


@dataclass(frozen=True)
class EvaluationConfig:
    """Bins, temperatures, and the corruptions of the test set, made or read from a folder.

    `also` names further weights that are evaluated beside those that are kept, see `train.keep`. `temperatures` are
    fitted on validation images: "clean" as they are, "shift_aware" together with augmented ones.
    """

    bins: int = 15
    also: tuple[str, ...] = ()
    temperatures: tuple[str, ...] = ("clean", "shift_aware")
    temperature_criterion: str = "nll"
    corruptions: tuple[str, ...] = ()
    constants: str = "cifar"
    frost: str | None = None
    corrupted: str | None = None
    batch_size: int = 500


@dataclass(frozen=True)
class Config:
    """Everything that decides a run. `finetuned_from` is a checkpoint whose classifier alone is trained."""

    recipe: str = "demo"
    method: str = "fgr"
    seed: int = 0
    device: str = "auto"
    finetuned_from: str | None = None
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    gamma: GammaConfig = field(default_factory=GammaConfig)
    constraint: ConstraintConfig = field(default_factory=ConstraintConfig)
    finetune: FinetuneConfig = field(default_factory=FinetuneConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        methods.find(self.method)
        for key, allowed in _CHOICES.items():
            if (value := _get(self, key)) not in allowed:
                raise unknown(key, value, [name for name in allowed if name is not None])
        for key, (should, holds) in _RANGES.items():
            if not holds(value := _get(self, key)):
                raise wrong(key, should, value)
        if self.train.nesterov and self.train.momentum == 0:
            raise wrong("train.nesterov", "false without train.momentum", True)
        constraint = self.row.constraint
        if self.train.rectify_per == "micro_batch" and constraint is not None and constraint.momentum:
            raise wrong("train.rectify_per", f"'batch' with {self.method}, which averages over steps", "'micro_batch'")
        if self.finetune.views > 0 and self.finetune.filtered_views == 0:
            raise wrong("finetune.filtered_views", "at least 1 with finetune.views", 0)

    @property
    def row(self) -> methods.Method:
        """The method's row, with what the recipe sets otherwise."""
        row = methods.find(self.method)
        low_pass = row.low_pass and _changed(row.low_pass, self.filter)
        constraint = row.constraint and _changed(row.constraint, self.constraint)
        loss = _changed(row.loss, self.gamma) if row.loss.name == "dual_focal" else row.loss
        weights = typing.cast(methods.Weights, self.train.keep or row.weights)
        return dataclasses.replace(row, loss=loss, low_pass=low_pass, constraint=constraint, weights=weights)

    @property
    def step_size(self) -> int:
        """Images in a step."""
        return self.train.batch_size * self.train.accumulate

    @property
    def start_epoch(self) -> int:
        """The first epoch, counted from 0, with filter and constraint."""
        return round(self.train.start * self.train.epochs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as a record stores it."""
        return dataclasses.asdict(self)


def _changed(cell: typing.Any, section: typing.Any) -> typing.Any:
    """Return a cell of a method's row with the values that a section of the recipe sets for fields of that name."""
    names = {field.name for field in dataclasses.fields(cell)}
    given = {field.name: getattr(section, field.name) for field in dataclasses.fields(section) if field.name in names}
    return dataclasses.replace(cell, **{name: value for name, value in given.items() if value is not None})


_WEIGHTS = typing.get_args(methods.Weights)
_TEMPERATURES = ("clean", "shift_aware")
_CHOICES = {
    "data.fit": (None, "crop", "stretch"),
    "data.loader": (None, "auto", "memory", "stream"),
    "train.schedule": ("one_cycle", "cosine", "multi_step", "exponential", "constant"),
    "train.optimizer": ("sgd", "adam", "adamw"),
    "train.rectify_per": ("batch", "micro_batch"),
    "engine.precision": ("auto", "fp32", "bf16"),
    "engine.capture": ("auto", "off"),
    "engine.compile": ("auto", "on", "off"),
    "train.loss_reduction": ("mean", "sum"),
    "train.keep": (None, *_WEIGHTS),
    "filter.filter": (None, "dct", "fft"),
    "filter.subsampling": (None, "4:4:4", "4:2:0"),
    "gamma.runner_up": (None, "below", "incorrect"),
    "constraint.scope": (None, "all", "classifier"),
    "constraint.centres": (None, "midpoints", "ends"),
    "train.augment": ("none", "crop_flip"),
    "evaluation.temperature_criterion": ("nll", "ece"),
    "device": ("auto", "cpu", "cuda"),
}
_POSITIVE = ("positive", lambda v: v > 0)
_NOT_NEGATIVE = ("at least 0", lambda v: v >= 0)
_RANGES: dict[str, tuple[str, typing.Callable[[Any], bool]]] = {
    "seed": ("in 0..2³²−1", lambda v: 0 <= v < 2**32),
    "data.size": ("positive", lambda v: v is None or v > 0),
    "data.workers": ("at least 0", lambda v: v is None or v >= 0),
    "train.input_size": ("positive", lambda v: v is None or v > 0),
    "train.mean": ("three numbers", lambda v: len(v) in (0, 3)),
    "train.std": ("three positive numbers", lambda v: len(v) in (0, 3) and all(x > 0 for x in v)),
    "train.epochs": _POSITIVE,
    "train.batch_size": _POSITIVE,
    "train.accumulate": _POSITIVE,
    "train.learning_rate": _POSITIVE,
    "train.momentum": ("in [0, 1)", lambda v: 0 <= v < 1),
    "train.weight_decay": _NOT_NEGATIVE,
    "train.warmup": ("in [0, 1)", lambda v: 0 <= v < 1),
    "train.milestones": ("epochs, at least 1", lambda v: all(epoch >= 1 for epoch in v)),
    "train.decay": ("in (0, 1]", lambda v: 0 < v <= 1),
    "train.start": ("a fraction in [0, 1]", lambda v: 0 <= v <= 1),
    "train.clip_norm": ("positive", lambda v: v is None or v > 0),
    "filter.ratio": ("in [0, 1)", lambda v: 0 <= v < 1),
    "filter.qualities": ("integers in 1..100, at least one", lambda v: len(v) > 0 and all(1 <= q <= 100 for q in v)),
    "filter.radii": ("positive, at least one", lambda v: len(v) > 0 and all(0 < r <= 10 for r in v)),
    "train.average_decay": ("in [0, 1)", lambda v: 0 <= v < 1),
    "gamma.released": _NOT_NEGATIVE,
    "gamma.dfl": _NOT_NEGATIVE,
    "gamma.fgr": _NOT_NEGATIVE,
    "gamma.bsce_gra": _NOT_NEGATIVE,
    "constraint.weight": _NOT_NEGATIVE,
    "finetune.views": _NOT_NEGATIVE,
    "finetune.filtered_views": _NOT_NEGATIVE,
    "finetune.epochs": _POSITIVE,
    "finetune.batch_size": _POSITIVE,
    "finetune.learning_rate": _POSITIVE,
    "finetune.weight_decay": _NOT_NEGATIVE,
    "finetune.gamma": _NOT_NEGATIVE,
    "evaluation.bins": ("in 1..1000", lambda v: 1 <= v <= 1000),
    "evaluation.batch_size": _POSITIVE,
    "evaluation.also": (f"of {', '.join(_WEIGHTS)}", lambda v: all(name in _WEIGHTS for name in v)),
    "evaluation.temperatures": (
        "'clean', or 'clean' and 'shift_aware'",
        lambda v: "clean" in v and all(name in _TEMPERATURES for name in v),
    ),
}


def _get(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = getattr(config, part)
    return config


def recipe_names() -> list[str]:
    """List the recipes that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in files("shiftcal.recipes").iterdir() if p.name.endswith(".toml"))


def load_config(recipe: str, overrides: Iterable[str] = ()) -> Config:
    """Read a recipe by name or path and apply overrides such as "train.epochs=4".

    Example:
        >>> load_config("demo", ["method=ce", "train.epochs=4"]).train.epochs
        4
    """
    if recipe.endswith(".toml"):
        path = Path(recipe)
        if not path.is_file():
            raise wrong("recipe", f"a TOML file or one of {', '.join(recipe_names())}", repr(recipe))
        text, name = _read_text(path), path.stem
    elif recipe in recipe_names():
        text, name = (files("shiftcal.recipes") / f"{recipe}.toml").read_text(encoding="utf-8"), recipe
    else:
        raise unknown("recipe", recipe, recipe_names())
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise wrong("recipe", "valid TOML", f"{recipe}: {error}") from None
    tree.setdefault("recipe", name)
    for override in overrides:
        _apply(tree, override)
    return from_dict(tree)


def config_of_run(directory: Path, overrides: Iterable[str] = ()) -> Config:
    """Read the config of an earlier run and apply overrides."""
    if not (directory / CONFIG).is_file():
        raise wrong("directory", f"one of a run, with {CONFIG}", str(directory))
    tree = read_object(directory / CONFIG)
    for override in overrides:
        _apply(tree, override)
    return from_dict(tree)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise wrong("recipe", "a text file in UTF-8", repr(str(path))) from None


def from_dict(tree: Mapping[str, Any]) -> Config:
    """Build a config from plain data; an unknown key or a value of the wrong type is an error."""
    return typing.cast(Config, _build(Config, tree, prefix=""))


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise wrong("set", "of the form key=value", repr(override))
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string: method=fgr
    *sections, name = key.strip().split(".")
    for depth, section in enumerate(sections):
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise wrong(key, "a key", f"'{'.'.join(sections[: depth + 1])}' is a value, not a section")
    tree[name] = value


def _build(kind: type, tree: Mapping[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(kind)
    for key in tree:
        if key not in hints:
            known = [f"{prefix}{name}" for name in hints] + (_all_keys() if not prefix else [])
            error = wrong("key", "a key of the configuration", f"{prefix}{key}")
            raise ValueError(f"{error}{did_you_mean(f'{prefix}{key}', known)}")
    return kind(**{key: _convert(hints[key], value, f"{prefix}{key}") for key, value in tree.items()})


def _all_keys() -> list[str]:
    hints = typing.get_type_hints(Config)
    return [f"{s}.{f.name}" for s, t in hints.items() if dataclasses.is_dataclass(t) for f in dataclasses.fields(t)]


def _convert(kind: Any, value: Any, key: str) -> Any:
    """Fit a TOML value to a field's type; an int may stand for a float, a list for a tuple."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise wrong(key, "a section", repr(value))
        return _build(typing.cast(type, kind), value, prefix=f"{key}.")
    if isinstance(kind, types.UnionType):
        return None if value is None else _convert(typing.get_args(kind)[0], value, key)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise wrong(key, "a list", repr(value))
        return tuple(_convert(typing.get_args(kind)[0], item, key) for item in value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise wrong(key, "finite", value)
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise wrong(key, f"of type {kind.__name__}", repr(value))
    return value
