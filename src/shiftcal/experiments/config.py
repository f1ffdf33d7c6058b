"""The configuration of a run: one tree of pydantic models, read from a TOML recipe, with overrides by dotted key."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from shiftcal import methods
from shiftcal._errors import ParameterError, RunDirectoryError, did_you_mean, unknown, wrong
from shiftcal._io import read_object
from shiftcal._plugins import load_plugins
from shiftcal._sections import Count, CountOrNone, Epochs, Fraction, Names, NotNegative, Section, should
from shiftcal.experiments.recipes import read_recipe
from shiftcal.experiments.trust import check_trusted
from shiftcal.methods import Method, Weights
from shiftcal.records import CONFIG
from shiftcal.training.settings import (
    ConstraintSettings,
    EngineSettings,
    FilterSettings,
    FinetuneSettings,
    GammaSettings,
    PerturbSettings,
    TrainSettings,
)

_WEIGHTS = typing.get_args(Weights)
_TEMPERATURES = ("clean", "shift_aware")


class DataSettings(Section):
    """Which data set, and what its function takes."""

    name: str = "shapes"
    """A name that `shiftcal data list` lists, one that a plugin adds, or `package.module:function`."""
    seed: int = 0
    """Seed of the splits, and of drawn images."""
    root: str | None = None
    """Where images on disk are; by default where `shiftcal data prepare` puts them."""
    size: Count | None = None
    """Images on disk become so many pixels square."""
    fit: Literal["crop", "stretch"] | None = None
    """How they become square."""
    loader: Literal["auto", "memory", "stream"] | None = None
    """Whether they are read into memory or decoded while training."""
    workers: CountOrNone | None = None
    """How many processes decode."""
    holdout: str | None = None
    """The domain that is the shift, of a set with domains."""
    train: Count = 6000
    """Training images of `shapes`."""
    validation: Count = 1000
    """Validation images of `shapes`."""
    test: Count = 2000
    """Test images of `shapes`."""
    texture_match: Fraction = 0.65
    """How often the texture of `shapes` matches the class."""
    texture_amplitude: NotNegative = 0.06
    """How strong the texture of `shapes` is."""


class EvaluationSettings(Section):
    """Bins, temperatures, and the corruptions of the test set, made or read from a folder."""

    bins: Annotated[int, should("in 1..1000", lambda v: 1 <= v <= 1000)] = 15
    """Number of confidence bins."""
    also: Annotated[Names, should(f"of {', '.join(_WEIGHTS)}", lambda v: all(name in _WEIGHTS for name in v))] = ()
    """Further weights to evaluate beside those that are kept, see `train.keep`."""
    temperatures: Annotated[
        Names,
        should("'clean', or 'clean' and 'shift_aware'", lambda v: "clean" in v and set(v) <= set(_TEMPERATURES)),
    ] = _TEMPERATURES
    """Temperatures to fit on validation images: `clean` as they are, `shift_aware` together with augmented ones."""
    temperature_criterion: Literal["nll", "ece"] = "nll"
    """What temperature scaling minimises."""
    corruptions: Names = ()
    """Corruptions of the test images; `all` is the 15 of the benchmark, `extra` the 4 others."""
    constants: str = "cifar"
    """Whose severities: `cifar`, `tiny-imagenet` or `imagenet`."""
    frost: str | None = None
    """A folder with photographs of frost, or `drawn`."""
    corrupted: str | None = None
    """A folder with corrupted sets to read instead of making them."""
    batch_size: Count = 500
    """Images at a time."""
    validate_every: Count = 1
    """Epochs from one measurement on the validation images to the next; the last epoch is always measured. The best
    epoch is the best of those measured. Where the classifier alone is trained, every epoch is."""
    every: Count | None = None
    """After every so many epochs, also measure the weights at that point on the test images, clean and under each shift
    at its middle severity: accuracy, mean confidence, NLL and ECE go into the history. Nothing is chosen by them. Not
    where the classifier alone is trained."""
    noise: Epochs = ()
    """Epochs, counted from 1, after which to measure the noise of the constraint's gradient, as `analyse noise` does:
    cosines, norm and conflicts over 16 pairs of batches go into the history. One process alone; not where the
    classifier alone is trained."""


class Config(Section):
    """Everything that decides a run."""

    recipe: str = "demo"
    """The recipe's name."""
    method: str = "fgr"
    """A row of `shiftcal.methods.METHODS`, one that a plugin adds, or `package.module:row`."""
    seed: Annotated[int, should("in 0..2³²−1", lambda v: 0 <= v < 2**32)] = 0
    """Seed of all randomness in training."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute."""
    plugins: Names = ()
    """Modules of your own that register methods, losses, data sets and models (`--plugin`); imported first."""
    finetuned_from: str | None = None
    """A checkpoint whose classifier alone is trained."""
    data: DataSettings = Field(default_factory=DataSettings)
    train: TrainSettings = Field(default_factory=TrainSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)
    filter: FilterSettings = Field(default_factory=FilterSettings)
    perturb: PerturbSettings = Field(default_factory=PerturbSettings)
    gamma: GammaSettings = Field(default_factory=GammaSettings)
    constraint: ConstraintSettings = Field(default_factory=ConstraintSettings)
    finetune: FinetuneSettings = Field(default_factory=FinetuneSettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)

    @model_validator(mode="after")
    def _check(self) -> Config:
        load_plugins(self.plugins)
        constraint = self.row.constraint
        if self.train.nesterov and self.train.momentum == 0:
            raise wrong("train.nesterov", "false without train.momentum", True)
        if self.train.rectify_per == "micro_batch" and constraint is not None and constraint.momentum:
            raise wrong("train.rectify_per", f"'batch' with {self.method}, which averages over steps", "'micro_batch'")
        if (last := max(self.evaluation.noise, default=0)) > self.train.epochs:
            raise wrong("evaluation.noise", f"epochs in 1..{self.train.epochs} (train.epochs)", last)
        if self.finetune.views > 0 and self.finetune.filtered_views == 0:
            raise wrong("finetune.filtered_views", "at least 1 with finetune.views", 0)
        return self

    @property
    def row(self) -> Method:
        """The method's row, with what the recipe sets otherwise."""
        row = methods.find(self.method)
        low_pass = row.low_pass and _changed(row.low_pass, self.filter)
        constraint = row.constraint and _changed(row.constraint, self.constraint)
        perturb = row.perturb and _changed(row.perturb, self.perturb)
        loss = _changed(row.loss, self.gamma) if row.loss.name == "dual_focal" else row.loss
        loss = _changed(loss, self.train) if loss.is_smoothed else loss
        weights = self.train.keep or row.weights
        return dataclasses.replace(
            row, loss=loss, low_pass=low_pass, constraint=constraint, perturb=perturb, weights=weights
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as a record stores it."""
        return self.model_dump(mode="json")


def _changed(cell: Any, section: Section) -> Any:
    """Return a cell of a method's row with the values that a section of the recipe sets for fields of that name."""
    names = {field.name for field in dataclasses.fields(cell)} & set(type(section).model_fields)
    given = {name: getattr(section, name) for name in names}
    return dataclasses.replace(cell, **{name: value for name, value in given.items() if value is not None})


def load_config(recipe: str, overrides: Iterable[str] = (), plugins: Iterable[str] = ()) -> Config:
    """Read a recipe by name or path and apply overrides such as "train.epochs=4"; plugins are added to the recipe's.

    Example:
        >>> load_config("demo", ["method=ce", "train.epochs=4"]).train.epochs
        4
    """
    return from_dict(_with_plugins(_overridden(read_recipe(recipe), overrides), plugins))


def config_of_run(
    directory: Path, overrides: Iterable[str] = (), *, trust: bool = False, plugins: Iterable[str] = ()
) -> Config:
    """Read the config of an earlier run and apply overrides.

    What it names in other packages would be imported and called: unless `trust` is given, that is refused, but for
    plugins that were imported before. `plugins` are added to the run's.
    """
    if not (directory / CONFIG).is_file():
        raise RunDirectoryError("directory", f"one of a run, with {CONFIG}", str(directory))
    tree = read_object(directory / CONFIG)
    if not trust:
        check_trusted(tree, directory / CONFIG)
    return from_dict(_with_plugins(_overridden(tree, overrides), plugins))


def stored_config(tree: Mapping[str, Any], where: object, own: Config) -> Config:
    """Build the config that a file of a run holds, to compare it with one's own.

    Functions of other packages that it names are imported only where one's own names them too.
    """
    check_trusted(tree, where, (own.method, own.train.model, own.data.name, *own.plugins))
    return from_dict(tree)


def from_dict(tree: Mapping[str, Any]) -> Config:
    """Build a config from plain data; an unknown key or a value of the wrong type is an error."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise _readable(error) from None


def all_keys() -> Iterator[tuple[str, Any]]:
    """List every key by its dotted name, with the field that defines it."""
    for name, field in Config.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from ((f"{name}.{key}", inner) for key, inner in kind.model_fields.items())
        else:
            yield name, field


def to_toml(config: Config) -> str:
    """Write a config as TOML: every key in its section, those that are not set as comments."""
    top = [line for name, value in config if not isinstance(value, Section) for line in _toml_lines(name, value)]
    sections = [
        ["", f"[{name}]", *(line for key, value in section for line in _toml_lines(key, value))]
        for name, section in config
        if isinstance(section, Section)
    ]
    return "\n".join([*top, *(line for lines in sections for line in lines), ""])


def _toml_lines(name: str, value: Any) -> list[str]:
    return [f"# {name} is not set"] if value is None else [f"{name} = {json.dumps(value, ensure_ascii=False)}"]


def _with_plugins(tree: dict[str, Any], plugins: Iterable[str]) -> dict[str, Any]:
    """Add plugins to those that a tree names; a value that is no list is left for the error that it deserves."""
    own, more = tree.get("plugins", []), list(plugins)
    return tree | {"plugins": list(dict.fromkeys([*own, *more]))} if more and isinstance(own, list) else tree


def _overridden(tree: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    for override in overrides:
        _apply(tree, override)
    return tree


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


def _readable(error: ValidationError) -> ParameterError:
    """Turn pydantic's first finding into our error, which names the key, what it should be, and what was found."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if isinstance(part, str) and not part.startswith("function-"))
    found, kind, context = first["input"], first["type"], first.get("ctx", {})
    if kind == "extra_forbidden":
        section = key.rpartition(".")[0]
        known = [name for name, _ in all_keys() if not section or name.startswith(f"{section}.")]
        known += [name for name in Config.model_fields if not section]
        return ParameterError("key", "a key of the configuration", key, did_you_mean(key, known))
    if kind == "value_error" and isinstance(context.get("error"), ParameterError):
        inner: ParameterError = context["error"]
        return inner
    if kind == "should":
        return wrong(key, context["text"], found)
    if kind == "literal_error":
        allowed = list(_literals(dict(all_keys())[key].annotation))
        return (
            unknown(key, found, allowed)
            if isinstance(found, str)
            else wrong(key, f"one of {', '.join(allowed)}", found)
        )
    return wrong(key, _TYPES.get(kind, first["msg"].lower()), repr(found))


def _literals(kind: Any) -> Iterator[str]:
    """List the values of the `Literal` in a field's type."""
    if typing.get_origin(kind) is Literal:
        yield from typing.get_args(kind)
    else:
        for part in typing.get_args(kind):
            yield from _literals(part)


_TYPES = {
    "int_type": "of type int",
    "float_type": "of type float",
    "bool_type": "of type bool",
    "string_type": "of type str",
    "tuple_type": "a list",
    "finite_number": "finite",
    "model_type": "a section",
    "model_attributes_type": "a section",
}
