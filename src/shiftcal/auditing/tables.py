"""Predictions from files: arrays and tables with named columns. Nothing is guessed, nothing is unpickled."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shiftcal._errors import DataError, did_you_mean, reason_of
from shiftcal.auditing.audit import PredictionSets
from shiftcal.auditing.sorting import Table, sorted_sets

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]
else:
    Array = np.ndarray

KINDS = ("logits", "probabilities")
TARGETS = "target.npy"
_COLUMN = re.compile(r"(logits|probabilities)_(\d+)")
SHIFTS = ("shift", "domain", "corruption")
_SUM, _ROUNDED, _MOST = 1e-3, 5e-4, 0.02  # what a row's sum may be off: at least, for each rounded class, at most


def read_predictions(files: str | Path | Sequence[str | Path], classes: Sequence[str] = ()) -> PredictionSets:
    """Read predictions and sort them into the clean test set, validation data and shifted sets.

    Files are `.npz` with the arrays `target` and `logits` or `probabilities`; `target.npy` beside `logits.npy` or
    `probabilities.npy`; `.csv` or `.parquet` with the columns `target` and `logits_0`, … or `probabilities_0`, ….
    Targets are indices of columns, or names where `classes` names the columns.
    Further columns or arrays may be `id`, `split`, `shift` (or `domain`, or `corruption`) and `severity`.
    """
    paths = [Path(file) for file in ((files,) if isinstance(files, str | Path) else files)]
    tables = [_checked(_read(file, paths), file, classes) for file in paths if file.name != TARGETS]
    if not tables:
        raise DataError("predictions", "files with predictions", ", ".join(map(str, paths)) or "none")
    widths = {table.outputs.shape[1] for table in tables}
    if len(widths) > 1:
        found = ", ".join(f"{f.name}: {t.outputs.shape[1]}" for f, t in zip(paths, tables, strict=False))
        raise DataError("predictions", "of one number of classes", found)
    return sorted_sets(tables)


def files_read(files: Sequence[Path]) -> list[Path]:
    """List the files that predictions are read from: those named, and the targets beside them."""
    beside = [file.with_name(TARGETS) for file in files if file.suffix == ".npy"]
    return list(dict.fromkeys([*files, *(file for file in beside if file.is_file())]))


def _read(file: Path, files: Sequence[Path]) -> Table:
    if not file.is_file():
        raise DataError("predictions", "a file", str(file))
    kind = file.suffix.lower()
    try:
        if kind == ".npz":
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                return _from_arrays({name: arrays[name] for name in arrays.files}, file)
        if kind == ".npy":
            return _from_pair(file, files)
        if kind == ".csv":
            return _from_columns(*_csv(file), file)
        if kind == ".parquet":
            return _from_columns(*_parquet(file), file)
    except DataError:
        raise
    except Exception as error:  # zipfile and pyarrow have types of their own
        raise DataError("predictions", "a whole file", f"{file}: {reason_of(error)}") from None
    raise DataError("predictions", "a .npz, .npy, .csv or .parquet file", str(file))


def _from_arrays(arrays: dict[str, Array], file: Path) -> Table:
    kinds = [kind for kind in KINDS if kind in arrays]
    if "target" not in arrays or len(kinds) != 1:
        expected = "one with the array `target` and one of `logits` and `probabilities`"
        raise DataError("predictions", expected, f"{file} with {', '.join(sorted(arrays)) or 'nothing'}")
    return Table(arrays["target"], arrays[kinds[0]], kinds[0], _more(arrays, file))


def _from_pair(file: Path, files: Sequence[Path]) -> Table:
    target = file.with_name(TARGETS)
    if file.stem not in KINDS:
        raise DataError("predictions", "logits.npy or probabilities.npy, with target.npy beside it", str(file))
    if not target.is_file():
        named = next((other for other in files if other.name == TARGETS), target)
        if not named.is_file():
            raise DataError("predictions", f"{file.name} with target.npy beside it", str(file))
        target = named
    return Table(np.load(target, allow_pickle=False), np.load(file, allow_pickle=False), file.stem)


def _csv(file: Path) -> tuple[list[str], dict[str, Array]]:
    """Read a table's head, and its columns: numbers where all are, else text."""
    import csv

    with file.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines)
        head = [name.strip() for name in next(rows, [])]
        if len(head) == 1 and ";" in head[0]:
            raise DataError("predictions", "columns separated by commas", f"{file}, where semicolons separate them")
        body = [row for row in rows if row]
    for number, row in enumerate(body, start=2):
        if len(row) != len(head):
            expected = f"rows of {len(head)} columns, as its head has"
            raise DataError("predictions", expected, f"{file}, line {number}, with {len(row)}")
    columns = {name: np.array([row[k] for row in body]) for k, name in enumerate(head)}
    return head, {name: _numbers(name, values, file) for name, values in columns.items()}


def _numbers(name: str, values: Array, file: Path) -> Array:
    if name not in ("target", "severity") and not _COLUMN.fullmatch(name):
        return values
    if name == "severity":
        values = np.where(values == "", "0", values)
    try:
        return values.astype(np.float64)
    except ValueError:
        if name == "target":
            return values  # names of classes
        odd = next(v for v in values.tolist() if not _is_number(v))
        raise DataError("predictions", f"numbers in the column {name}", f"{file} with {odd!r}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet(file: Path) -> tuple[list[str], dict[str, Array]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        expected = "a .csv file, or pyarrow installed (pip install 'shiftcal[parquet]')"
        raise DataError("predictions", expected, str(file)) from None
    table = parquet.read_table(file)
    columns = {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}
    return list(table.column_names), columns


def _from_columns(head: list[str], columns: dict[str, Array], file: Path) -> Table:
    if doubled := sorted({name for name in head if head.count(name) > 1}):
        raise DataError("predictions", "one column of each name", f"{file} with {doubled[0]} twice")
    found: dict[str, dict[int, Array]] = {}
    for name, values in columns.items():
        if match := _COLUMN.fullmatch(name):
            found.setdefault(match[1], {})[int(match[2])] = values
    if "target" not in columns or len(found) != 1:
        expected = "one with the columns target and logits_0, logits_1, … or probabilities_0, …"
        raise DataError("predictions", expected, f"{file} with {', '.join(head[:8]) or 'nothing'}")
    [(kind, outputs)] = found.items()
    if missing := sorted(set(range(max(outputs) + 1)) - set(outputs)):
        raise DataError(
            "predictions", f"one with every column up to {kind}_{max(outputs)}", f"{file}, without {kind}_{missing[0]}"
        )
    stacked = np.stack([outputs[k] for k in range(len(outputs))], axis=1)
    return Table(columns["target"], stacked, kind, _more(columns, file))


def _more(columns: Mapping[str, Array], file: Path) -> dict[str, Array]:
    """Take the columns that tell which test set a row belongs to; others are named in a warning."""
    shifts = [name for name in SHIFTS if name in columns]
    if len(shifts) > 1:
        raise DataError("predictions", f"one column of {', '.join(SHIFTS)}", f"{file} with {' and '.join(shifts)}")
    known = {"id": "id", "split": "split", "severity": "severity"} | dict.fromkeys(SHIFTS, "shift")
    unused = [n for n in columns if n not in known and n not in ("target", *KINDS) and not _COLUMN.fullmatch(n)]
    if unused:
        warnings.warn(f"{file.name} has columns that are not used: {', '.join(unused[:5])}.", stacklevel=4)
    return {known[name]: values for name, values in columns.items() if name in known}


def _indices(targets: Array, classes: Sequence[str], file: Path) -> Array:
    """Look up the columns of targets that are names."""
    if targets.dtype.kind not in "OSUT" or targets.ndim != 1:
        return targets
    targets = targets.astype(str) if targets.dtype.kind == "S" else targets
    expected = f"class indices in target, or names of the {len(classes)} of --classes"
    if not classes:
        expected = "class indices in target (or --classes FILE, which names the columns in order)"
    place = {name: index for index, name in enumerate(classes)}
    strange = [name for name in map(str, targets) if name not in place]
    if strange:
        odd = next((name for name in strange if not _is_number(name)), strange[0])
        raise DataError("predictions", expected, f"{file} with {odd!r}", did_you_mean(odd, place))
    return np.array([place[str(name)] for name in targets], dtype=np.int64)


def _checked(table: Table, file: Path, classes: Sequence[str]) -> Table:
    """Raise unless rows are what they say they are, with what is wrong in words."""
    targets, outputs = _indices(np.asarray(table.targets), classes, file), np.asarray(table.outputs)
    n = len(targets) if targets.ndim == 1 else -1
    if n == 0:
        raise DataError("predictions", "at least one row", f"{file}, without any")
    if outputs.ndim != 2 or len(outputs) != n or outputs.shape[1] < 2 or outputs.dtype.kind not in "fiu":
        expected = "numbers of shape [N, K], K ≥ 2, with N targets"
        raise DataError("predictions", expected, f"{file}: {list(outputs.shape)} and {list(targets.shape)} targets")
    if targets.dtype.kind not in "fiu" or not np.isfinite(targets).all() or (targets != np.round(targets)).any():
        raise DataError("predictions", "class indices in target", f"{file} with {targets[:3].tolist()}, …")
    outputs = outputs.astype(np.float64)
    if not np.isfinite(outputs).all():
        bad = int((~np.isfinite(outputs)).any(1).sum())
        raise DataError("predictions", "finite", f"{file}, where {bad} of {n} rows have NaN or infinity")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= outputs.shape[1]:
        raise DataError("predictions", f"of targets in 0..{outputs.shape[1] - 1}", f"{file} with {low}..{high}")
    if table.kind == "probabilities":
        outputs = _probabilities(outputs, file)
    elif _are_probabilities(outputs):
        warnings.warn(
            f"All rows of {file.name} sum to 1 and lie in [0, 1]: are these probabilities, not logits? "
            "Then name them so.",
            stacklevel=3,
        )
    for name, values in table.more.items():
        if np.shape(values) != (n,):
            raise DataError("predictions", f"{name} for each of {n} rows", f"{file} with {list(np.shape(values))}")
    return Table(targets.astype(np.int64), outputs, table.kind, table.more)


def _are_probabilities(outputs: Array) -> bool:
    return bool((outputs >= 0).all() and (np.abs(outputs.sum(1) - 1) < _SUM).all())


def _probabilities(outputs: Array, file: Path) -> Array:
    """Raise unless rows sum to 1, as nearly as rounded ones may; those that are farther off are divided by their sums.

    The others stay as they are, so that probabilities on the edges of bins stay there.
    """
    if outputs.min() < 0 or outputs.max() > 1 + _SUM + 1e-6:
        found = f"{file} with values from {outputs.min():.3g} to {outputs.max():.3g}: are these logits?"
        raise DataError("predictions", "probabilities in [0, 1]", found)
    off = np.abs(outputs.sum(1) - 1)
    if off.max() > max(_SUM, min(_ROUNDED * outputs.shape[1], _MOST)) + 1e-6:
        found = f"{file}, where row {int(off.argmax()) + 1} sums to {outputs.sum(1)[off.argmax()]:.4g}"
        raise DataError("predictions", "probabilities of rows that sum to 1", found)
    if off.max() > _SUM + 1e-6:
        warnings.warn(
            f"Rows of {file.name} sum to 1 within {off.max():.2g}, as rounded ones do; those that are off by more than "
            f"{_SUM:g} are divided by their sums.",
            stacklevel=4,
        )
        rows = off > _SUM + 1e-6
        outputs[rows] /= outputs[rows].sum(1, keepdims=True)
    return outputs
