"""Numeric keys of the configs in records, and what an axis calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shiftcal._errors import wrong
from shiftcal.records import RunRecord
from shiftcal.report.figures.canvas import shown

RATIO, QUALITY = "filter.ratio", "filter.qualities"
_LETTERS = {
    RATIO: "share ρ of filtered images",
    QUALITY: "quality λ of the filter",
    "train.start": "start of filter and constraint, as a share of the epochs",
    "train.batch_size": "batch size",
}


def number_of(record: RunRecord, key: str) -> float:
    """Return a numeric key of a record's config; of a list of one number, that number."""
    value: Any = record.config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if not is_number(value) or not abs(value) < 1e12:
        raise wrong("key", f"a numeric key that all records have, such as {', '.join(_LETTERS)}", f"{key} = {value}")
    return float(value)


def is_number(value: Any) -> bool:
    """Tell whether a value is a number, or a list of one."""
    value = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
    return isinstance(value, int | float) and not isinstance(value, bool)


def title_of(key: str) -> str:
    """Write what a key is, for an axis."""
    if key.startswith("gamma."):
        return f"γ ({shown(key)})"
    return f"{_LETTERS[key]} ({shown(key)})" if key in _LETTERS else shown(key)
