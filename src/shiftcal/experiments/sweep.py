"""Sweeps over keys: what `--seeds`, `--sweep` and `--select` say, and how the directories of their runs are named."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from shiftcal import methods
from shiftcal._errors import ParameterError, did_you_mean, wrong
from shiftcal.experiments.config import Config, all_keys
from shiftcal.records import SPEED_KEYS

_OTHER_OPTIONS = {"seed": "--seeds", "method": "--methods", "recipe": "RECIPE"}
_SEEDS = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MOST_SEEDS = 1000
_LONGEST = 180  # characters of a directory's name


def seeds_of(text: str) -> list[int]:
    """Read seeds and ranges of them.

    Example:
        >>> seeds_of("0,1,5-7")
        [0, 1, 5, 6, 7]
    """
    error = wrong("seeds", f"whole numbers and ranges, such as 0,1,5-7, up to {_MOST_SEEDS}", repr(text))
    found: dict[int, None] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        match = _SEEDS.fullmatch(word)
        if match is None or max(map(len, match.groups(""))) > 10:
            raise error
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < _MOST_SEEDS:
            raise error
        found |= dict.fromkeys(range(first, last + 1))
    if not 0 < len(found) <= _MOST_SEEDS:
        raise error
    return list(found)


def swept_keys(option: str, words: Iterable[str], fixed: Iterable[str] = ()) -> dict[str, list[str]]:
    """Read options of the form KEY=VALUE,VALUE,…: the values of each key, as text.

    Args:
        option: The option's name, for messages.
        words: The options.
        fixed: Keys that have a value already (`--set KEY=VALUE`, or another sweep).
    """
    known, taken = dict(all_keys()), set(fixed)
    found: dict[str, list[str]] = {}
    for word in words:
        key, _, text = word.partition("=")
        key, values = key.strip(), values_of(option, text)
        if key in _OTHER_OPTIONS:
            raise wrong(option, f"over another key than {key}, which {_OTHER_OPTIONS[key]} takes", repr(word))
        if key not in known:
            raise ParameterError(option, "over a key of the configuration", repr(word), did_you_mean(key, known))
        if key in SPEED_KEYS:
            raise wrong(option, "over a key that changes results, not speed", repr(word))
        if not values:
            raise wrong(option, "of the form KEY=VALUE,VALUE,…", repr(word))
        if key in found or any(key == one or key.startswith(f"{one}.") for one in taken):
            raise wrong(option, f"over a key that no other option sets, and {key} is set twice", repr(word))
        found[key] = values
    return found


def check_fixed(words: Iterable[str]) -> None:
    """Raise if `--set` names what a grid varies and would overrule: seeds and methods."""
    for word in words:
        if (key := word.partition("=")[0].strip()) in _OTHER_OPTIONS:
            raise wrong("set", f"of another key than {key}, which {_OTHER_OPTIONS[key]} takes", repr(word))


def values_of(option: str, text: str) -> list[str]:
    """Split values at commas that are neither in brackets nor in quotes.

    Example:
        >>> values_of("sweep", "[15],[18,25],'a,b'")
        ['[15]', '[18,25]', "'a,b'"]
    """
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if depth < 0:
            break
        if character == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += character
    if depth or quote:
        raise wrong(option, "with brackets and quotes that are closed", repr(text))
    return list(dict.fromkeys(value.strip() for value in values if value.strip()))


def combinations(swept: Mapping[str, list[str]]) -> Iterator[dict[str, str]]:
    """Yield every combination of values; of no keys there is one, the empty one.

    Example:
        >>> list(combinations({"a": ["1", "2"], "b": ["3"]}))
        [{'a': '1', 'b': '3'}, {'a': '2', 'b': '3'}]
    """
    for values in itertools.product(*swept.values()):
        yield dict(zip(swept, values, strict=True))


def uses(config: Config, key: str) -> bool:
    """Tell whether a run depends on a key: fine-tuning on any, training as its method's row says."""
    return bool(config.finetuned_from) or methods.uses(config.row, key)


def run_name(config: Mapping[str, Any], keys: Collection[str] = ()) -> str:
    """Name the directory of a run: METHOD-SEED, or METHOD-KEY=VALUE-SEED with the swept keys in order.

    Example:
        >>> run_name({"method": "fgr", "seed": 0, "filter": {"ratio": 0.03}}, ["filter.ratio"])
        'fgr-filter.ratio=0.03-0'
    """
    stem = "-".join([str(config["method"]), *(f"{key}={_safe(value_at(config, key))}" for key in sorted(keys))])
    if keys and len(stem) > _LONGEST:
        stem = f"{stem[: _LONGEST - 9]}_{_digest(stem)}"
    return f"{stem}-{config['seed']}"


def keys_in(name: str) -> set[str]:
    """List the swept keys in the name of a run's directory.

    Example:
        >>> keys_in("fgr-filter.ratio=0.03-0")
        {'filter.ratio'}
    """
    return {key for key, _ in all_keys() if f"-{key}=" in name}


def value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key."""
    section, _, name = key.rpartition(".")
    return config[section][name] if section else config[key]


def _safe(value: Any) -> str:
    """Write a value with characters that file systems take; what it loses, a checksum tells apart."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, list):
        return "+".join(map(_safe, value)) or "empty"
    text = str(value)
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", text)
    return safe if safe == text != "" else f"{safe[-40:]}_{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
