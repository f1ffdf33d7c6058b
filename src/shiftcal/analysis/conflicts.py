"""Gradient conflicts over training, from a record's history alone (FGR paper, section "Gradient Conflict Rate")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shiftcal.records import Epoch, RunRecord

PARTS = ("clean", "shifted", "validation")


@dataclass(frozen=True)
class Curves:
    """A number after each epoch, where it was measured.

    Attributes:
        epochs: The epochs, counted from 1.
        values: The number after each.
    """

    epochs: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class ConflictHistory:
    """How often main and constraint gradient conflicted, and what was measured meanwhile.

    Attributes:
        rate: The share of steps in which they did.
        cosine: The mean cosine between them.
        measured: Accuracy, ECE and NLL by the images they were measured on ("clean" and "shifted" test images, or
            "validation" where a run did not look at these while it trained), then by the metric's name.
        start: The first epoch with the constraint, counted from 1.
        decays: Epochs at whose start a constant learning rate fell to a third or less.
    """

    rate: Curves
    cosine: Curves
    measured: Mapping[str, Mapping[str, Curves]]
    start: int | None
    decays: tuple[int, ...]


def conflict_history(record: RunRecord) -> ConflictHistory:
    """Collect a run's conflict rate, cosine and metrics over its epochs."""
    history = record.history
    rate = _curve(history, [entry.conflict_rate for entry in history])
    return ConflictHistory(
        rate=rate,
        cosine=_curve(history, [entry.mean_cosine for entry in history]),
        measured=measured_over(record),
        start=rate.epochs[0] if rate.epochs else None,
        decays=_decays(record),
    )


def measured_over(record: RunRecord) -> dict[str, dict[str, Curves]]:
    """Collect what was measured after epochs: on test images if the run did that, on validation images otherwise."""
    found = {part: _metrics(record, part) for part in PARTS}
    if found["clean"] or found["shifted"]:
        del found["validation"]
    return {part: metrics for part, metrics in found.items() if metrics}


def _metrics(record: RunRecord, part: str) -> dict[str, Curves]:
    of_epochs = [_of(entry, part) for entry in record.history]
    curves = {
        name: _curve(record.history, [values.get(name) for values in of_epochs]) for name in ("accuracy", "ece", "nll")
    }
    return {name: curve for name, curve in curves.items() if curve.epochs}


def _of(entry: Epoch, part: str) -> Mapping[str, Any]:
    if part == "validation":
        return entry.validation
    return entry.test.get(part, {})


def _curve(history: tuple[Epoch, ...], values: list[float | None]) -> Curves:
    known = [(entry.epoch, value) for entry, value in zip(history, values, strict=True) if value is not None]
    return Curves(tuple(epoch for epoch, _ in known), tuple(value for _, value in known))


def _decays(record: RunRecord) -> tuple[int, ...]:
    rates = [(entry.epoch, entry.learning_rate) for entry in record.history]
    triples = zip(rates, rates[1:], rates[2:], strict=False)
    return tuple(epoch for (_, a), (_, b), (epoch, c) in triples if a == b and 0 < c <= b / 3)
