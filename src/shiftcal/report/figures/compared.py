"""Which records a figure may compare, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from shiftcal._errors import wrong
from shiftcal._io import first_difference, flat
from shiftcal.records import RunRecord
from shiftcal.report.figures.config_keys import is_number, number_of
from shiftcal.report.labels import FREE, config_of
from shiftcal.report.table import rows_of


def methods_of(records: Sequence[RunRecord]) -> list[str]:
    """List the methods of records in the order of METHODS; records that cannot be compared are an error."""
    return [row.method for row in rows_of(list(records))]


def check_only(records: Sequence[RunRecord], keys: set[str]) -> None:
    """Raise unless configs differ in these keys and the seed alone, and none comes twice."""
    first, seen = config_of(records[0]), set()
    for record in records:
        if differing := first_difference(first, config_of(record), ignored=FREE | keys | {"seed"}):
            expected = f"of runs of a method that differ in {', '.join(sorted(keys))} and the seed alone"
            raise wrong("records", expected, f"{record.method} with {differing}")
        place = (record.seed, *(number_of(record, key) for key in sorted(keys)))
        if place in seen:
            raise wrong("records", "of one run for each value and seed", f"two of {record.method} at {place}")
        seen.add(place)


def differing_keys(records: Sequence[RunRecord]) -> set[str]:
    """List the numeric keys in which configs differ."""
    trees = [flat(config_of(record)) for record in records]
    keys = set().union(*trees) - {"seed"} - FREE
    changing = {key for key in keys if len({repr(tree.get(key)) for tree in trees}) > 1}
    return {key for key in changing if all(is_number(tree.get(key)) for tree in trees)}
