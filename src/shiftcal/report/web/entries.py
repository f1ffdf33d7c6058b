"""Runs and audits in one form, as the page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shiftcal._io import flat
from shiftcal.records import Bins, Cell, Environment, Epoch, RunRecord
from shiftcal.records.audit import AuditRecord
from shiftcal.records.gallery import Sample

CALIBRATORS = {
    "clean": "temperature, fitted on clean validation images",
    "shift_aware": "temperature, fitted on clean and augmented validation images",
}


class TestSet(NamedTuple):
    """A test set: clean, shifted, or another one."""

    kind: str
    shift: str | None = None
    severity: int | None = None


CLEAN = TestSet("clean")


@dataclass(frozen=True)
class Entry:
    """One run or audit.

    Attributes:
        name: What it is compared as: a method, or a model.
        seed: Its seed; of an audit there is none.
        place: The domain that was held out, if one was.
        cells: What was measured on each test set.
        by_class: Bins of each class, of the clean and of the shifted sets.
        classes: Names of the classes.
        history: Epochs of training.
        config: The resolved configuration, by dotted key.
        about: What else is known, in words.
        calibrators: What may be applied to it, by name, in words.
        gallery: Sample images.
    """

    name: str
    seed: int | None
    cells: dict[TestSet, Cell]
    place: str | None = None
    by_class: dict[str, tuple[Bins, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    history: tuple[Epoch, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    calibrators: dict[str, str] = field(default_factory=dict)
    gallery: tuple[Sample, ...] = ()


def of_run(record: RunRecord, gallery: Sequence[Sample] = ()) -> Entry:
    """Show a run."""
    evaluation, data = record.evaluation, record.data
    cells = {CLEAN: evaluation.clean}
    cells |= {TestSet("other", name): cell for name, cell in evaluation.other_tests.items()}
    cells |= _shifts(evaluation.shifts)
    reliability = evaluation.reliability
    return Entry(
        name=record.method,
        seed=record.seed,
        place=record.config["data"].get("holdout"),
        cells=cells,
        by_class={"clean": reliability.clean_by_class, "shifted": reliability.shifted_by_class},
        classes=data.classes if data else (),
        history=record.history,
        config=flat(record.config),
        about=_about_run(record),
        calibrators={name: CALIBRATORS.get(name, name) for name in evaluation.clean.scaled},
        gallery=tuple(gallery),
    )


def of_audit(record: AuditRecord, gallery: Sequence[Sample] = ()) -> Entry:
    """Show an audit."""
    cells: dict[TestSet, Cell] = {CLEAN: record.clean}
    cells |= _shifts(record.shifts)
    words = {name: f"{name}, fitted on {tried.fitted_on}" for name, tried in record.calibrators.items()}
    return Entry(
        name=record.model.name,
        seed=None,
        cells=cells,
        by_class={"clean": record.clean.by_class},
        classes=record.data.classes,
        config=flat({"preprocessing": record.data.preprocessing}),
        about=_about_audit(record),
        calibrators={name: words.get(name, name) for name in record.clean.scaled},
        gallery=tuple(gallery),
    )


def _shifts(cells: Sequence[Cell]) -> dict[TestSet, Cell]:
    """List shifted test sets; a shift that was measured once, such as a domain, has no severity."""
    names = [str(cell.shift) for cell in cells]
    return {
        TestSet("shift", n, c.severity if names.count(n) > 1 else None): c for n, c in zip(names, cells, strict=True)
    }


def machine_of(record: Environment, device: dict[str, Any]) -> str:
    """Name the machine: the device, or the processor."""
    name = device.get("name") or record.machine.get("processor", "?")
    cores = "" if device.get("name") else f", {record.machine.get('cores', '?')} cores"
    return f"{name}{cores}, torch {record.versions.get('torch', '?')}"


def _about_run(record: RunRecord) -> dict[str, str]:
    data = record.data
    found = {
        "recipe": record.recipe,
        "data": f"{data.name}: {counted(data.counts)}" if data else str(record.config["data"].get("name", "?")),
        "weights": record.weights.kept + (f" (epoch {record.weights.epoch})" if record.weights.epoch else ""),
        "temperatures": ", ".join(f"{name} {value:.3g}" for name, value in record.evaluation.temperatures.items()),
        "machine": machine_of(record, record.device),
        "started": record.started or "–",
        "revision": record.revision or "–",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items() if version),
    }
    return found | {f"seconds, {name}": f"{value:.1f}" for name, value in record.seconds.items()}


def _about_audit(record: AuditRecord) -> dict[str, str]:
    return {
        "model": f"{record.model.kind} {record.model.name}",
        "outputs": record.model.outputs + (f"; {record.model.restricted}" if record.model.restricted else ""),
        "SHA-256": record.model.sha256 or "–",
        "data": f"{record.data.name}: {counted(record.data.counts)}",
        "corruptions": record.corruptions.constants or "–",
        "machine": machine_of(record, record.device),
        "started": record.started or "–",
        "seconds": f"{record.seconds.get('audit', 0):.0f}",
    }


def counted(counts: dict[str, int], most: int = 6) -> str:
    """Write how many images each part has."""
    return ", ".join(f"{name} {count:,}" for name, count in list(counts.items())[:most]) or "counts unknown"
