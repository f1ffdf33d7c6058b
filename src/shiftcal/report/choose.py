"""Which part of records a report shows: some of the methods, other weights of the same run, or fewer shifts."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from shiftcal._errors import unknown
from shiftcal.records import METRICS, Bins, Cell, Evaluation, Mean, Measured, Reliability, RunRecord


def with_methods(records: Sequence[RunRecord], names: Collection[str]) -> list[RunRecord]:
    """Return the records of the named methods."""
    known = dict.fromkeys(record.method for record in records)
    for name in names:
        if name not in known:
            raise unknown("methods", name, known)
    return [record for record in records if record.method in names]


def with_weights(records: Sequence[RunRecord], name: str) -> list[RunRecord]:
    """Return the records with the evaluation of other weights, such as "average", in place of the kept ones."""
    return [record if record.weights.kept == name else _other_weights(record, name) for record in records]


def _other_weights(record: RunRecord, name: str) -> RunRecord:
    if name not in record.also:
        run = f"{record.method}, seed {record.seed}: {name}"
        raise unknown("weights", run, sorted({record.weights.kept, *record.also}))
    chosen = record.also[name]
    kept = record.weights.model_copy(update={"kept": name, "epoch": chosen.epoch, "sha256": None})
    return record.model_copy(update={"evaluation": chosen, "weights": kept, "also": {}})


def without_shifts(records: Sequence[RunRecord], left_out: Collection[str]) -> list[RunRecord]:
    """Return the records without the named shifts: means and pooled bins are those of the others."""
    for name in left_out:
        known = {str(cell.shift) for record in records for cell in record.evaluation.shifts}
        if name not in known:
            raise unknown("without", name, sorted(known))
    return [record.model_copy(update={"evaluation": _fewer(record.evaluation, left_out)}) for record in records]


def _fewer(evaluation: Evaluation, left_out: Collection[str]) -> Evaluation:
    cells = tuple(cell for cell in evaluation.shifts if cell.shift not in left_out)
    bins = [cell.bins for cell in cells]
    whole = [some for some in bins if some is not None]
    reliability = Reliability(
        clean=evaluation.reliability.clean,
        clean_by_class=evaluation.reliability.clean_by_class,
        shifted=pooled(whole) if whole and len(whole) == len(bins) else None,
    )
    shifted = mean_of(cells) if cells else None
    return evaluation.model_copy(update={"shifts": cells, "shifted": shifted, "reliability": reliability})


def mean_of(cells: Sequence[Cell]) -> Mean:
    """Average the metrics of cells, also those after each temperature."""
    names = [name for name in cells[0].scaled if all(name in cell.scaled for cell in cells)]
    scaled = {name: _means([cell.scaled[name] for cell in cells]) for name in names}
    return Mean.model_validate(_means(cells) | {"scaled": scaled})


def _means(measured: Sequence[Measured]) -> dict[str, float]:
    found = {name: [getattr(one, name) for one in measured] for name in METRICS}
    return {name: statistics.fmean(values) for name, values in found.items() if None not in values}


def pooled(diagrams: Sequence[Bins]) -> Bins:
    """Put the bins of several test sets or seeds together, weighted by their counts."""
    count = [sum(d.count[m] for d in diagrams) for m in range(len(diagrams[0].count))]

    def mean(key: str) -> tuple[float, ...]:
        sums = [sum(getattr(d, key)[m] * d.count[m] for d in diagrams) for m in range(len(count))]
        return tuple(total / n if n else 0.0 for total, n in zip(sums, count, strict=True))

    return Bins(count=tuple(count), confidence=mean("confidence"), accuracy=mean("accuracy"))
