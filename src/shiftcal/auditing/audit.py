"""An audit: any predictions, or any model on any images, clean and under shift."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from shiftcal import _distributed
from shiftcal._errors import wrong
from shiftcal._progress import Progress
from shiftcal.auditing.behind import Behind
from shiftcal.auditing.grid import STRENGTHS, ShiftGrid, nearest_constants
from shiftcal.auditing.journal import Journal
from shiftcal.auditing.measure import Fitted, audit_cell, fit_all
from shiftcal.auditing.predictors import check_logits
from shiftcal.auditing.verdict import best_calibrator, verdict, warnings_of
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import ImageSplit
from shiftcal.evaluation import Parts, Predictions, device_of, predict
from shiftcal.metrics.ece_interval import Gaps, interval_of_mean_ece
from shiftcal.records import Corruptions
from shiftcal.records.audit import AuditCell, AuditedData, AuditMean, AuditRecord, ModelSeen, Tried
from shiftcal.shifts.lazy import Augmented

_FEW = 2_000_000  # numbers
NO_VALIDATION = "no validation data were given"


@dataclass(frozen=True, eq=False)
class Images:
    """The images of an audit.

    Attributes:
        name: The name of the data.
        classes: The names of the classes, in the order of the model's outputs.
        test: The clean test images.
        validation: What calibrators are fitted on, if there is any.
        shifts: Further test sets of the same classes, by name and severity.
    """

    name: str
    classes: tuple[str, ...]
    test: ImageSplit
    validation: ImageSplit | None = None
    shifts: Mapping[str, Sequence[ImageSplit]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for split in (self.test, self.validation, *(split for splits in self.shifts.values() for split in splits)):
            if split is not None and not hasattr(split, "take"):  # isinstance would open files
                expected = "of splits, such as shiftcal.data.MemorySplit(images, targets)"
                raise wrong("images", expected, f"with a {type(split).__name__}")

    @property
    def counts(self) -> dict[str, int]:
        """How many images each part has."""
        own = {"test": len(self.test)} | ({"validation": len(self.validation)} if self.validation else {})
        return own | {name: sum(map(len, splits)) for name, splits in self.shifts.items()}


@dataclass(frozen=True, eq=False)
class PredictionSets:
    """Predictions of an audit: of the clean test set, of validation data if there are any, and of shifted sets.

    `outputs` is "probabilities" where the logits are logarithms of these.
    """

    clean: Predictions
    validation: Predictions | None = None
    shifts: Mapping[tuple[str, int | None], Predictions] = field(default_factory=dict)
    outputs: str = "logits"

    @property
    def counts(self) -> dict[str, int]:
        """How many predictions each part has."""
        own = {"test": len(self.clean.targets)}
        if self.validation is not None:
            own["validation"] = len(self.validation.targets)
        for (name, _), predictions in self.shifts.items():
            own[name] = own.get(name, 0) + len(predictions.targets)
        return own


Later = Callable[[], Predictions]
Shifted = Iterable[tuple[str, int | None, Later]]


def audit_predictions(
    sets: PredictionSets,
    *,
    name: str = "predictions",
    classes: tuple[str, ...] = (),
    bins: int = 15,
    journal: Journal | None = None,
    about: Mapping[str, Any] | None = None,
    on_fitted: Callable[[Fitted], None] | None = None,
) -> AuditRecord:
    """Audit predictions that were made elsewhere.

    Args:
        sets: The predictions.
        name: What they are called.
        classes: The names of the classes.
        bins: Number of bins.
        journal: Where finished cells are kept, so that an interrupted audit continues.
        about: More of the record, such as the environment.
        on_fitted: Gets the fitted calibrators.
    """
    seen = {} if sets.validation is None else {"clean": sets.validation}
    later: Shifted = [(shift, severity, _held(p)) for (shift, severity), p in sets.shifts.items()]
    fitted = fit_all(seen, NO_VALIDATION)
    if on_fitted is not None:
        on_fitted(fitted)
    return _assembled(
        fitted,
        seen.get("clean"),
        lambda: sets.clean,
        later,
        bins=bins,
        journal=journal,
        about={
            "model": ModelSeen(name=name, kind="predictions", outputs=sets.outputs),
            "data": AuditedData(name=name, classes=classes, counts=sets.counts),
            **(about or {}),
        },
    )


def audit(
    model: nn.Module,
    images: Images,
    *,
    preprocess: Preprocessing,
    corruptions: Sequence[str] = ("all",),
    constants: str | None = None,
    frost: str | None = None,
    bins: int = 15,
    batch_size: int = 500,
    journal: Journal | None = None,
    about: Mapping[str, Any] | None = None,
    on_fitted: Callable[[Fitted], None] | None = None,
    progress: bool = True,
) -> AuditRecord:
    """Audit a model: how far its confidence can be trusted, clean and under shift, and what would mend it.

    Args:
        model: Takes preprocessed images, returns logits, one column for each class; `Predictor` wraps one of others.
        images: What to audit it on.
        preprocess: What makes stored images the model's input.
        corruptions: Names of corruptions of the test images, each at five severities; ("all",) is the 15 of the
            benchmark, ("extra",) the four others, () none.
        constants: Whose severities, see `corrupt`; by default those made for images nearest to this size.
        frost: Where frost's photographs come from, see `corrupt`.
        bins: Number of bins.
        batch_size: Images at a time.
        journal: Where finished cells are kept, so that an interrupted audit continues.
        about: More of the record, such as the model's name and the environment.
        on_fitted: Gets the fitted calibrators.
        progress: Show progress.
    """
    grid = ShiftGrid(corruptions, constants or nearest_constants(images.test.shape[-1]), frost)
    grid.check_images(images.test)
    cells = list(grid.cells(images.test, images.shifts))
    total = 1 + len(cells) + (1 + len(STRENGTHS) if images.validation is not None else 0)
    with Progress("audit", total, enabled=progress and _distributed.rank() == 0) as bar:

        def predicted(split: Parts) -> Predictions:
            found = predict(model, split, preprocess, batch_size=batch_size)
            check_logits(model, found.logits, len(images.classes))
            bar.advance()
            return found.cpu() if behind else found

        behind = _measured_behind(model, images)
        seen = _seen(predicted, images.validation)
        fitted = fit_all(seen, NO_VALIDATION)
        if on_fitted is not None:
            on_fitted(fitted)
        later: Shifted = [(name, severity, _later(predicted, split)) for name, severity, split in cells]
        record = _assembled(
            fitted,
            seen.get("clean"),
            lambda: predicted(images.test),
            later,
            bins=bins,
            journal=journal,
            behind=behind,
            about={
                "model": ModelSeen(name=type(model).__name__, kind="module"),
                "data": AuditedData(name=images.name, classes=images.classes, counts=images.counts),
                "corruptions": grid.origin() if corruptions else Corruptions(),
                **(about or {}),
            },
        )
        bar.line(f"{1 + len(cells)} test set{'s' * bool(cells)}")
    return record


def fit_again(
    model: nn.Module, images: Images, *, preprocess: Preprocessing, batch_size: int = 500, progress: bool = True
) -> Fitted:
    """Fit the calibrators of an audit again, on its validation images alone; see `audit`."""
    total = 1 + len(STRENGTHS) if images.validation is not None else 0
    with Progress("calibrate", total, enabled=progress and _distributed.rank() == 0) as bar:

        def predicted(split: Parts) -> Predictions:
            found = predict(model, split, preprocess, batch_size=batch_size)
            bar.advance()
            return found

        return fit_all(_seen(predicted, images.validation), NO_VALIDATION)


def _measured_behind(model: nn.Module, images: Images) -> bool:
    """Tell whether sets are measured on the CPU while the device predicts the next: not where that takes longer."""
    sizes = [len(split) for splits in images.shifts.values() for split in splits]
    largest = max(len(images.test), len(images.validation or ()), *sizes)
    small = largest * len(images.classes) <= _FEW
    return small and device_of(model).type != "cpu" and not _distributed.is_distributed()


def _seen(predicted: Callable[[Parts], Predictions], validation: ImageSplit | None) -> dict[str, Predictions]:
    """Predict what calibrators are fitted on: validation images as they are, and augmented."""
    if validation is None:
        return {}
    augmented = {f"augmix {strength:g}": Augmented(validation, strength) for strength in STRENGTHS}
    return {"clean": predicted(validation)} | {name: predicted(split) for name, split in augmented.items()}


def _held(predictions: Predictions) -> Later:
    return lambda: predictions


def _later(predicted: Callable[[Parts], Predictions], split: Parts) -> Later:
    return lambda: predicted(split)


def _assembled(
    fitted: Fitted,
    validation: Predictions | None,
    clean: Later,
    shifts: Shifted,
    *,
    bins: int,
    journal: Journal | None,
    about: Mapping[str, Any],
    behind: bool = False,
) -> AuditRecord:
    """Measure every test set and put the record together; `behind`: one while the next is predicted."""
    started = time.perf_counter()
    journal = Journal() if journal is None else journal  # one without cells counts as empty

    def measured(predictions: Predictions, name: str | None, severity: int | None) -> None:
        clean = name is None
        journal.add(*audit_cell(predictions, fitted, bins=bins, shift=name, severity=severity, by_class=clean))

    sets = [(None, None, clean), *shifts]
    with Behind(enabled=behind) as measuring:
        for name, severity, later in sets:
            if journal.known(name, severity) is None:
                measuring.call(measured, later(), name, severity)
    (first, _), *found = (journal.finished(name, severity) for name, severity, _ in sets)
    own = None if validation is None else audit_cell(validation, fitted, bins=bins)[0]
    cells = tuple(one for one, _ in found)
    shifted = _mean(cells, [gaps for _, gaps in found]) if cells else None
    record = AuditRecord.model_validate(
        {
            "bins": bins,
            "validation": own,
            "clean": first,
            "shifts": cells,
            "shifted": shifted,
            "calibrators": _tried(fitted, first, shifted),
            "sets": dict(fitted.no_sets),
            "seconds": {"audit": time.perf_counter() - started},
            **about,
        }
    )
    record = record.model_copy(update={"mended_by": best_calibrator(record)})
    record = record.model_copy(update={"warnings": (*record.warnings, *warnings_of(record))})
    return record.model_copy(update={"verdict": verdict(record)})


def _tried(fitted: Fitted, clean: AuditCell, shifted: AuditMean | None) -> dict[str, Tried]:
    """Fill in what each calibrator changes."""

    def filled(name: str, tried: Tried) -> Tried:
        under = shifted.scaled.get(name) if shifted is not None else None
        return tried.model_copy(update={"clean": clean.scaled.get(name), "shifted": under})

    return {name: filled(name, tried) for name, tried in fitted.tried.items()}


def _mean(cells: Sequence[AuditCell], gaps: Sequence[Gaps]) -> AuditMean:
    """Average cells; images are resampled for the interval, the same ones in sets that share them."""
    plain = [cell.model_dump(exclude={"bins", "histogram", "by_class", "shift", "severity", "n"}) for cell in cells]
    mean: dict[str, Any] = _mean_of(plain)
    _, mean["ece_low"], mean["ece_high"] = interval_of_mean_ece(gaps)
    return AuditMean.model_validate(mean)


def _mean_of(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average trees of numbers, key by key; what some lack is left out."""
    mean: dict[str, Any] = {}
    for key, first in trees[0].items():
        if key == "bins":  # of a calibrator
            continue
        values = [tree.get(key) for tree in trees]
        if isinstance(first, Mapping):
            mean[key] = _mean_of([value if isinstance(value, Mapping) else {} for value in values])
        elif all(isinstance(value, int | float) for value in values):
            mean[key] = statistics.fmean(values)  # type: ignore[arg-type]
    return mean


__all__ = ["Images", "PredictionSets", "audit", "audit_predictions"]
