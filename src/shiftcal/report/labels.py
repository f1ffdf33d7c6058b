"""Names for runs that differ in more than method and seed, and the settings whose runs one table may compare."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from shiftcal._io import flat
from shiftcal.methods import METHODS, Method, uses
from shiftcal.records import SPEED_KEYS, Evaluation, RunRecord
from shiftcal.report.text import plain

# Keys that decide how fast a run is or what else it evaluates, not what a table shows.
FREE = SPEED_KEYS | {"evaluation.also", "evaluation.every", "evaluation.noise", "evaluation.validate_every"}
# Keys in which the runs of one label may differ: a mean is over seeds and over domains held out in turn.
_MEANT = FREE | {"method", "seed", "data.holdout"}
# Keys that are told by their value alone, before all others.
_SHORT = ("data.name", "train.model", "recipe")
_NOT_SET = "not set"
_LONGEST = 40  # characters of a value
_ORDER = {name: place for place, name in enumerate(METHODS)}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


@dataclass(frozen=True)
class Setting:
    """Runs that one table may compare: the same data, network, shifts and domains held out.

    Attributes:
        title: What tells it from the other settings; empty where it is the only one.
        records: Its records, labelled.
    """

    title: str
    records: list[RunRecord]


def labelled(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the records with a `method` for each setting: "fgr", or "fgr, filter.ratio 0.03" where runs of it differ.

    Only keys that vary within a method are named, as few as tell its runs apart; data set, network and recipe come
    first, by their value alone. Seeds, domains held out, the keys in FREE and those that the method does not use tell
    nothing; the latter do where two runs would be alike otherwise. Labelling labelled records again changes nothing.
    """
    places: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        places.setdefault(record.method, []).append(place)
    labels = [record.method for record in records]
    for method, own in places.items():
        configs = _telling_texts([records[place] for place in own])
        keys = _telling(configs)
        for place, config in zip(own, configs, strict=True):
            labels[place] = ", ".join([method, *_words(config, keys)])
    pairs = zip(records, labels, strict=True)
    return [one if label == one.method else one.model_copy(update={"method": label}) for one, label in pairs]


def base_of(label: str) -> str:
    """Return the method of a label.

    Example:
        >>> base_of("fgr, filter.ratio 0.03")
        'fgr'
    """
    return label.partition(", ")[0]


def order_of(label: str) -> tuple[Any, ...]:
    """Return a key that sorts labels: methods in the order of METHODS, then by what differs, numbers by their value.

    Example:
        >>> sorted(["mine", "fgr, filter.ratio 0.1", "fgr, filter.ratio 0.05", "ce"], key=order_of)
        ['ce', 'fgr, filter.ratio 0.05', 'fgr, filter.ratio 0.1', 'mine']
    """
    base = base_of(label)
    return _ORDER.get(base, len(_ORDER)), base, _natural(label)


def methods_of(records: Iterable[RunRecord]) -> list[str]:
    """List the methods of records, or their labels, in order."""
    return sorted({record.method for record in records}, key=order_of)


def settings_of(records: Sequence[RunRecord]) -> list[Setting]:
    """Sort records into settings, each with its records labelled: what differs in more cannot be compared."""
    groups = [part for group in _comparable(records) for part in _by_domains(labelled(group))]
    if len(groups) == 1:
        return [Setting("", groups[0])]
    configs = [_setting_texts(group[0]) | _held_out(group) for group in groups]
    keys = _telling(configs)
    titles = [", ".join(_words(config, keys)) for config in configs]
    numbered = [
        title if titles.count(title) == 1 else f"{title} ({titles[: place + 1].count(title)})".strip()
        for place, title in enumerate(titles)
    ]
    settings = [Setting(title, group) for title, group in zip(numbered, groups, strict=True)]
    return sorted(settings, key=lambda setting: _natural(setting.title))


def shape_of(evaluation: Evaluation) -> dict[str, Any]:
    """List what evaluations have to share for a mean over them: bins, and the severities of each shift."""
    severities: dict[str, list[int]] = {}
    for cell in evaluation.shifts:
        severities.setdefault(str(cell.shift), []).append(cell.severity or 0)
    found: dict[str, Any] = {f"severities of {shift}": sorted(own) for shift, own in severities.items()}
    found["bins"] = len(evaluation.reliability.clean.count)
    if evaluation.reliability.shifted is not None:
        found["bins under shift"] = len(evaluation.reliability.shifted.count)
    return found


def holdout_of(record: RunRecord) -> str | None:
    """Name the domain that a run held out."""
    holdout = record.config["data"].get("holdout")
    return None if holdout is None else plain(holdout)


def config_of(record: RunRecord) -> dict[str, Any]:
    """Return the configuration as far as the method uses it.

    What its row decides where the configuration does not is filled in: kept weights, clipping, label smoothing, views.
    """
    config, row = _filled(record), _row_of(record)
    if row is None:
        return config
    found = {}
    for name, section in config.items():
        used = section
        if isinstance(section, Mapping):
            used = {key: value for key, value in section.items() if uses(row, f"{name}.{key}")}
        if used or not section:
            found[name] = used
    return found


def _filled(record: RunRecord) -> dict[str, Any]:
    row, config = _row_of(record), record.config
    of_row = {} if row is None else {"clip_norm": row.clip_norm, "smoothing": row.loss.smoothing}
    found = config | {"train": _with_row(config, "train", of_row) | {"keep": record.weights.kept}}
    if row is not None and row.perturb is not None:
        found["perturb"] = _with_row(config, "perturb", asdict(row.perturb))
    return found


def _with_row(config: Mapping[str, Any], name: str, of_row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with the row's values for keys that it does not set."""
    section = config.get(name)
    own = dict(section) if isinstance(section, Mapping) else {}
    return own | {key: value for key, value in of_row.items() if own.get(key) is None}


def _row_of(record: RunRecord) -> Method | None:
    """Return the method's row with the filter of the configuration, on which it depends which strengths count."""
    row, settings = METHODS.get(base_of(record.method)), record.config.get("filter")
    chosen = settings.get("filter") if isinstance(settings, Mapping) else None
    if row is None or row.low_pass is None or chosen not in ("dct", "fft"):
        return row
    return replace(row, low_pass=replace(row.low_pass, filter=chosen))


def _comparable(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Sort records by data, network and evaluation, and by bins, severities, classes and number of test images."""
    groups: list[tuple[dict[str, str], dict[str, Any], list[RunRecord]]] = []
    for record in records:
        config, shape = _setting_texts(record), shape_of(record.evaluation) | _data_of(record)
        for known, seen, group in groups:
            if known == config and all(seen.get(name, value) == value for name, value in shape.items()):
                seen |= shape
                group.append(record)
                break
        else:
            groups.append((config, shape, [record]))
    return [group for _, _, group in groups]


def _data_of(record: RunRecord) -> dict[str, Any]:
    """List what tells a folder from another that lay in the same place before; domains held out have other counts."""
    classes = record.data.classes if record.data is not None else ()
    found = {"classes": list(classes) or None, "test images": record.evaluation.clean.n}
    return {} if holdout_of(record) else {name: value for name, value in found.items() if value is not None}


def _by_domains(records: list[RunRecord]) -> list[list[RunRecord]]:
    """Sort labelled records by the domains that were held out with their seed: means are over the same ones."""
    domains: dict[tuple[str, int], set[str]] = {}
    for record in records:
        domains.setdefault((record.method, record.seed), set()).add(str(holdout_of(record)))
    groups: dict[frozenset[str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(frozenset(domains[record.method, record.seed]), []).append(record)
    return list(groups.values())


def _held_out(records: list[RunRecord]) -> dict[str, str]:
    names = sorted({name for record in records if (name := holdout_of(record)) is not None})
    return {"held out": ", ".join(names)} if names else {}


def _telling_texts(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Lay out what a method uses; all there is where runs would be alike, as in a sweep of what it does not use."""
    used = [_texts(record, config_of(record)) for record in records]
    runs = zip(records, used, strict=True)
    if len({(record.seed, holdout_of(record), *sorted(texts.items())) for record, texts in runs}) == len(records):
        return used
    return [_texts(record, _filled(record)) for record in records]


def _texts(record: RunRecord, config: Mapping[str, Any]) -> dict[str, str]:
    """Lay a config out flat, as text; what is not set or empty is left out, as if the key were not there."""
    found = flat({"recipe": record.recipe, **config})
    return {key: _text(value) for key, value in found.items() if value not in (None, [], ()) and key not in _MEANT}


def _setting_texts(record: RunRecord) -> dict[str, str]:
    texts = _texts(record, config_of(record))
    return {key: text for key, text in texts.items() if key.startswith(("data.", "evaluation.")) or key == _SHORT[1]}


def _text(value: Any) -> str:
    """Write a value: numbers that are equal alike, lists in brackets."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return plain(value)[:_LONGEST]


def _telling(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """Choose keys that tell configs apart, as few as one by one can be found."""
    every = {key for config in configs for key in config}
    varying = [key for key in every if len({config.get(key) for config in configs}) > 1]
    rank = {key: place for place, key in enumerate(_SHORT)}
    chosen: list[str] = []
    parts = 1
    whole = {key for key in varying if all(key in config for config in configs)}  # the others came with a version
    for key in sorted(varying, key=lambda key: (rank.get(key, len(rank)), key not in whole, key)):
        found = len({tuple(config.get(name) for name in (*chosen, key)) for config in configs})
        if found > parts:
            chosen, parts = [*chosen, key], found
    return chosen


def _words(config: Mapping[str, str], keys: Iterable[str]) -> list[str]:
    """Write the values of keys, with the key's name unless the value says it all."""
    return [
        config[key] if key in _SHORT and key in config else f"{plain(key)} {config.get(key, _NOT_SET)}" for key in keys
    ]


def _natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """Split text at its numbers, so that these sort by their value."""
    parts = [part for part in _NUMBER.split(text) if part]
    return tuple((0, float(part), "") if _NUMBER.fullmatch(part) else (1, 0.0, part) for part in parts)
