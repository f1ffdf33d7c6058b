"""Records in files: one run's, those of a directory of runs, and a grid's in one file."""

from __future__ import annotations

import json
import lzma
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shiftcal._errors import ParameterError, RunDirectoryError, reason_of, wrong
from shiftcal._io import read_json, write_atomically
from shiftcal.records.models import RunRecord
from shiftcal.records.selection import read_selection
from shiftcal.records.upgrade import upgraded

CONFIG, RECORD, WEIGHTS = "config.json", "record.json", "model.safetensors"
CALIBRATOR = "calibrator.safetensors"
_GRID, _MORE = "records.jsonl", re.compile(r"records-[\w.+-]+\.jsonl(\.xz)?")
_DIGITS = 5  # significant digits of a compact record


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
        raise RunDirectoryError("record", "a run's record", f"{where}: {reason_of(error)}") from None


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

    Candidates that a selection did not choose are left out too, without a warning. Where nothing can be read, that is
    an error.
    """
    if (place / RECORD).is_file():
        return [read_record(place / RECORD)], {}
    grids = [place] if place.is_file() else grids_in(place)
    not_chosen: dict[str, str] = {}
    if not grids:
        selection, runs = read_selection(place), find_runs(place)
        not_chosen = {run.name: reason for run in runs if (reason := selection.reason(run.name))}
        found = {run.name: _run_record(run) for run in runs if run.name not in not_chosen}
        _warn_of_deeper(place, runs)
    else:
        found = _records_of(grids)
    records = [record for record in found.values() if isinstance(record, RunRecord)]
    left_out = {name: record for name, record in found.items() if isinstance(record, str)}
    if not records:
        expected = "one with finished runs (`shiftcal train … --resume` finishes one)"
        reasons = "; ".join(f"{name}: {reason}" for name, reason in (left_out | not_chosen).items())
        raise RunDirectoryError("directory", expected, f"{place}, with {reasons}")
    if left_out:
        listed = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        warnings.warn(f"Left out, {len(left_out)} of {len(found)} runs: {listed}.", stacklevel=2)
    return records, left_out | not_chosen


def _warn_of_deeper(place: Path, runs: Sequence[Path]) -> None:
    """Warn of directories of runs in a directory of runs: their runs are not read."""
    deeper = sorted({path.parent.parent for path in place.glob(f"*/*/{RECORD}")} - set(runs))
    if deeper and place not in runs:
        listed = ", ".join(map(str, deeper))
        warnings.warn(
            f"Left out, since they are directories of runs themselves: {listed}. Name them too.", stacklevel=3
        )


def load_all(places: Sequence[Path]) -> tuple[list[RunRecord], dict[str, str]]:
    """Read the records of several places, see `load_finished`; names of what was left out tell the place."""
    if len(places) == 1:
        return load_finished(places[0])
    records: list[RunRecord] = []
    left_out: dict[str, str] = {}
    for place in places:
        try:
            found, missing = load_finished(place)
        except ParameterError as error:
            left_out[str(place)] = str(error)
            warnings.warn(f"Left out: {error}", stacklevel=2)
            continue
        twice = [record for record in found if record in records]
        records += [record for record in found if record not in twice]
        left_out |= {f"{place}, {record.method}, seed {record.seed}": "given twice" for record in twice}
        left_out |= {str(place / name): reason for name, reason in missing.items()}
    if not records:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise RunDirectoryError("directory", "some with finished runs", reasons)
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


def grids_in(directory: Path) -> list[Path]:
    """List a directory's files of records: records.jsonl, or records.jsonl.xz, and any records-MORE.jsonl beside it.

    Several let records be added without writing those before again.
    """
    first = next((path for end in ("", ".xz") if (path := directory / f"{_GRID}{end}").is_file()), None)
    if first is None:
        return []
    return [first, *sorted(path for path in directory.iterdir() if _MORE.fullmatch(path.name) and path.is_file())]


def _records_of(grids: Sequence[Path]) -> dict[str, RunRecord | str]:
    """Read the records of a grid's files; of several, one that cannot be read is told."""
    if len(grids) == 1:
        return _grid_records(grids[0])
    found: dict[str, RunRecord | str] = {}
    for path in grids:
        try:
            found |= {f"{path.name}, {line}": record for line, record in _grid_records(path).items()}
        except ParameterError as error:
            found[path.name] = str(error)
    return found


def _grid_records(path: Path) -> dict[str, RunRecord | str]:
    """Read each line of a grid's file, or tell why it cannot be read."""
    found: dict[str, RunRecord | str] = {}
    for number, line in _lines(path):
        name = f"line {number}"
        try:
            found[name] = parse_record(json.loads(line), f"{path}, line {number}")
        except (ValueError, RecursionError) as error:
            found[name] = f"damaged ({error.found if isinstance(error, ParameterError) else error})"
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
