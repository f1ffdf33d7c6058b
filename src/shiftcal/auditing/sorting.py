"""Rows of predictions, sorted into the clean test set, validation data and shifted sets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shiftcal._errors import DataError
from shiftcal.auditing.audit import PredictionSets
from shiftcal.evaluation import Predictions

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
else:
    Array = np.ndarray

_VALIDATION, _TEST = ("validation", "val", "valid"), ("test", "")
_SMALLEST = np.finfo(np.float64).tiny  # of a probability, whose logarithm is a logit, as in `metrics.nll`
Key = tuple[str, str, int | None]  # split, shift, severity


@dataclass(frozen=True)
class Table:
    """The rows of a file: a target and outputs each, and which test set they belong to."""

    targets: Array
    outputs: Array
    kind: str
    more: Mapping[str, Array] = field(default_factory=dict)  # id, split, shift, severity


@dataclass(frozen=True)
class _Rows:
    logits: Array
    targets: Array
    ids: tuple[str, ...] = ()
    probabilities: Array | None = None  # where these were given


def sorted_sets(tables: Sequence[Table]) -> PredictionSets:
    """Sort rows into test sets; where rows have an id, those of a set come in its order."""
    parts: dict[Key, list[_Rows]] = {}
    for table in tables:
        keys = _keys(table)
        for key in dict.fromkeys(keys):
            parts.setdefault(key, []).append(_chosen(table, np.array([k == key for k in keys])))
    rows = {key: _joined(key, some) for key, some in parts.items()}
    _check_apart(rows)
    found = {key: _predictions(some) for key, some in rows.items()}
    clean = found.pop(("test", "", None), None)
    if clean is None:
        raise DataError("predictions", "some of the clean test set (no shift, split test or none)", "none")
    validation = found.pop(("validation", "", None), None)
    if strange := [key for key in found if key[0] == "validation"]:
        expected = "validation rows without a shift, on which calibrators are fitted"
        raise DataError("predictions", expected, f"some of {strange[0][1]}")
    shifts = {(shift, severity): p for (_, shift, severity), p in found.items()}
    outputs = "probabilities" if any(table.kind == "probabilities" for table in tables) else "logits"
    sets = PredictionSets(clean, validation, shifts, outputs)
    _warn_of_order(sets, rows)
    return sets


def _predictions(rows: _Rows) -> Predictions:
    given = None if rows.probabilities is None else torch.from_numpy(rows.probabilities)
    return Predictions(torch.from_numpy(rows.logits), torch.from_numpy(rows.targets), given)


def _keys(table: Table) -> list[Key]:
    n = len(table.targets)
    splits = [_split(str(value)) for value in table.more.get("split", np.full(n, "test")).tolist()]
    shifts = [_shift(value) for value in table.more.get("shift", np.full(n, "")).tolist()]
    severities = [_severity(value) for value in table.more.get("severity", np.zeros(n)).tolist()]
    for shift, severity in zip(shifts, severities, strict=True):
        if severity is not None and not shift:
            raise DataError("predictions", "a shift where there is a severity", f"severity {severity} without one")
    return list(zip(splits, shifts, severities, strict=True))


def _split(value: str) -> str:
    name = value.strip().lower()
    if name in _VALIDATION:
        return "validation"
    if name in _TEST:
        return "test"
    raise DataError("predictions", "rows whose split is `validation` or `test`", repr(value))


def _shift(value: object) -> str:
    name = "" if value is None else str(value).strip()
    return "" if name.lower() in ("", "clean", "none", "nan") else name


def _severity(value: Any) -> int | None:
    number = 0.0 if value in (None, "") else float(value)
    if math.isnan(number) or number == 0:
        return None
    if not math.isfinite(number) or number != int(number) or not 1 <= number <= 100:
        raise DataError("predictions", "severities 1, 2, … (0 or none without one)", repr(value))
    return int(number)


def _chosen(table: Table, rows: Array) -> _Rows:
    outputs = table.outputs[rows]
    logits = outputs if table.kind == "logits" else np.log(np.maximum(outputs, _SMALLEST))
    ids = tuple(str(one) for one in np.asarray(table.more["id"])[rows].tolist()) if "id" in table.more else ()
    return _Rows(logits, table.targets[rows], ids, outputs if table.kind == "probabilities" else None)


def _joined(key: Key, parts: Sequence[_Rows]) -> _Rows:
    """Put the rows of several files together, in the order of their ids if all have one."""
    logits, targets = (np.concatenate([getattr(part, name) for part in parts]) for name in ("logits", "targets"))
    given = [part.probabilities for part in parts if part.probabilities is not None]
    probabilities = np.concatenate(given) if len(given) == len(parts) else None
    ids = tuple(one for part in parts for one in part.ids)
    if len(ids) < len(targets):
        return _Rows(logits, targets, (), probabilities)
    if len(set(ids)) < len(ids):
        twice = next(one for k, one in enumerate(ids) if one in ids[:k])
        raise DataError("predictions", "each id once in a test set", f"{twice!r} twice in {_named(key)}")
    order = np.argsort(np.array(ids), kind="stable")
    ordered = None if probabilities is None else probabilities[order]
    return _Rows(logits[order], targets[order], tuple(ids[k] for k in order), ordered)


def _named(key: Key) -> str:
    split, shift, severity = key
    return f"{shift} {severity or ''}".strip() if shift else f"the {split} set"


def _check_apart(rows: Mapping[Key, _Rows]) -> None:
    """Raise if rows on which calibrators are fitted are test rows too."""
    validation = set(rows[key].ids) if (key := ("validation", "", None)) in rows else set()
    for other, some in rows.items():
        if other[0] == "test" and (shared := validation & set(some.ids)):
            found = f"{len(shared)} ids in both, such as {min(shared)!r}"
            raise DataError("predictions", f"validation rows that are not in {_named(other)}", found)


def _warn_of_order(sets: PredictionSets, rows: Mapping[Key, _Rows]) -> None:
    """Warn where shifted sets seem to be of the same images in another order, which only ids could tell."""
    clean = sets.clean.targets
    if rows["test", "", None].ids:
        return
    for (shift, _), predictions in sets.shifts.items():
        own = predictions.targets
        if len(own) == len(clean) and not torch.equal(own, clean) and torch.equal(own.sort()[0], clean.sort()[0]):
            warnings.warn(
                f"Rows of {shift} come in another order than those of the clean test set, and have no ids: the "
                "interval of the mean takes test sets for independent and may be too narrow.",
                stacklevel=3,
            )
            return
