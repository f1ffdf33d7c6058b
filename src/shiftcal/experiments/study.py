"""A study: a grid of methods, seeds and swept keys, with values that may be selected on the validation images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shiftcal import _distributed
from shiftcal._errors import UnfinishedError, unknown, wrong
from shiftcal._progress import say
from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.grid import check_all, complete_all, placed
from shiftcal.experiments.sweep import check_fixed, combinations, run_name, uses, value_at
from shiftcal.records import (
    METRICS,
    RECORD,
    SELECTION,
    Candidate,
    Choice,
    Selection,
    read_record,
    read_selection,
    write_selection,
)

_BY = tuple(f"validation.{name}" for name in METRICS)


@dataclass(frozen=True)
class Study:
    """What a study runs.

    Attributes:
        recipe: A recipe's name or path.
        methods: Methods.
        seeds: Seeds; candidates of a selection have the first one.
        fixed: Overrides of all runs, such as "train.epochs=4".
        swept: Values of keys, as text; each combination is a setting of its own.
        selected: Values of keys of which the best combination is chosen for each method and setting.
        by: What the best one is best in, on the validation images.
        plugins: Modules that register methods, losses, data sets and models.
        share_warmup: Whether what runs have in common at first is trained once, see `complete_all`.
    """

    recipe: str
    methods: Sequence[str]
    seeds: Sequence[int]
    fixed: Sequence[str] = ()
    swept: dict[str, list[str]] = field(default_factory=dict)
    selected: dict[str, list[str]] = field(default_factory=dict)
    by: str = "validation.ece"
    plugins: Sequence[str] = ()
    share_warmup: bool = True

    def __post_init__(self) -> None:
        if self.by not in _BY:
            raise unknown("by", self.by, _BY)
        check_fixed(self.fixed)

    @property
    def keys(self) -> dict[str, list[str]]:
        """All keys that vary, with their values."""
        return self.swept | self.selected

    def complete(self, out: Path, engine: str = "local", *, workers: int = 1) -> None:
        """Complete every run in its subdirectory of `out`; choices are in its selection.json.

        Runs that diverge stop no other: `UnfinishedError` names them at the end.
        """
        earlier, wanted = read_selection(out), placed(self.runs(), out)
        check_all(wanted, out, self.keys)
        self._tell_unused()
        if not self.selected:
            _write(out, earlier, earlier.without(wanted))
            self._complete(wanted, out, engine, workers)
            return
        candidates = placed(self.runs(self.seeds[:1]), out)
        failed = self._attempt(candidates, out, engine, workers)
        choices = self._choices(candidates, out)
        _write(out, earlier, earlier.with_choices([choice for choice in choices if len(choice.candidates) > 1]))
        rest = placed(self._other_seeds(choices, candidates), out)
        failed |= self._attempt(rest, out, engine, workers) if rest else {}
        if failed:
            raise UnfinishedError(failed, len(candidates) + len(rest))

    def runs(self, seeds: Sequence[int] | None = None) -> dict[str, Config]:
        """List the runs by the name of their directory; a key that a method does not use makes no further run."""
        found: dict[str, Config] = {}
        for method in self.methods:
            for values in combinations(self.keys):
                for seed in self.seeds if seeds is None else seeds:
                    config = self._config(method, seed, values)
                    used = {key: text for key, text in values.items() if uses(config, key)}
                    config = config if used == values else self._config(method, seed, used)
                    name = run_name(config.to_dict(), used)
                    if found.setdefault(name, config) != config:
                        raise wrong("sweep", "over values whose names differ", name)
        return found

    def _config(self, method: str, seed: int, values: Mapping[str, str]) -> Config:
        swept = (f"{key}={text}" for key, text in values.items())
        return load_config(self.recipe, [*self.fixed, *swept, f"method={method}", f"seed={seed}"], self.plugins)

    def _tell_unused(self) -> None:
        for method in self.methods:
            configs = [config for config in self.runs(self.seeds[:1]).values() if config.method == method]
            unused = [key for key in self.keys if not any(uses(config, key) for config in configs)]
            if unused:
                say(f"{method} does not use {', '.join(unused)}: one run stands for all values.")

    def _attempt(self, configs: dict[str, Config], out: Path, engine: str, workers: int) -> dict[str, str]:
        """Complete runs, and tell which diverged."""
        try:
            self._complete(configs, out, engine, workers)
        except UnfinishedError as error:
            return error.failed
        return {}

    def _complete(self, configs: dict[str, Config], out: Path, engine: str, workers: int) -> None:
        complete_all(configs, out, engine, workers=workers, swept=self.keys, share_warmup=self.share_warmup)

    def _choices(self, candidates: dict[str, Config], out: Path) -> list[Choice]:
        """Choose among the candidates of each method and setting, and say what was chosen."""
        groups: dict[str, dict[str, Config]] = {}
        for name, config in candidates.items():
            setting = run_name(config.to_dict(), [key for key in self.swept if uses(config, key)])
            groups.setdefault(setting, {})[name] = config
        return [self._choice(group, out) for group in groups.values()]

    def _choice(self, group: dict[str, Config], out: Path) -> Choice:
        first = next(iter(group.values()))
        found = [
            Candidate(run=name, values=_values(config, self.selected), metric=self._metric(out / name / RECORD))
            for name, config in group.items()
        ]
        measured = [candidate for candidate in found if candidate.metric is not None]
        sign = -1 if self.by.endswith("accuracy") else 1
        best = min(measured, key=lambda candidate: sign * (candidate.metric or 0.0), default=None)
        choice = Choice(
            method=first.method,
            setting=_values(first, self.swept),
            by=self.by,
            seed=first.seed,
            candidates=tuple(found),
            chosen=None if best is None else best.run,
        )
        if len(found) > 1:
            say(_in_words(choice, out))
        return choice

    def _metric(self, path: Path) -> float | None:
        return read_record(path).evaluation.validation.value(self.by.partition(".")[2]) if path.is_file() else None

    def _other_seeds(self, choices: list[Choice], candidates: dict[str, Config]) -> dict[str, Config]:
        """List the runs of the chosen values with the other seeds."""
        chosen = [candidates[choice.chosen] for choice in choices if choice.chosen is not None]
        configs = [config.model_copy(update={"seed": seed}) for config in chosen for seed in self.seeds[1:]]
        return {run_name(c.to_dict(), [key for key in self.keys if uses(c, key)]): c for c in configs}


def _values(config: Config, keys: Iterable[str]) -> dict[str, Any]:
    return {key: value_at(config.to_dict(), key) for key in keys if uses(config, key)}


def _write(out: Path, earlier: Selection, selection: Selection) -> None:
    if selection != earlier and _distributed.rank() == 0:
        write_selection(out, selection)


def _in_words(choice: Choice, out: Path) -> str:
    where = f"{choice.method}{''.join(f', {key} = {value}' for key, value in choice.setting.items())}"
    told = {c.run: c.in_words for c in choice.candidates}
    listed = "; ".join(f"{told[c.run]}: {'–' if c.metric is None else f'{c.metric:.4f}'}" for c in choice.candidates)
    if choice.chosen is None:
        return f"{where}: no candidate finished."
    return f"{where}: {told[choice.chosen]} has the best {choice.by} ({listed}), see {out / SELECTION}"
