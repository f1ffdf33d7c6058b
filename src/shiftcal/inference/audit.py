"""`shiftcal audit`: from what a user names to a model, images and a record."""

from __future__ import annotations

import importlib.util
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shiftcal import __version__, _distributed
from shiftcal._errors import DataError, RunDirectoryError, reason_of, wrong
from shiftcal._io import read_json, sha256_of, write_json
from shiftcal._progress import say
from shiftcal.auditing.audit import Images, PredictionSets, audit, audit_predictions
from shiftcal.auditing.grid import ShiftGrid, nearest_constants
from shiftcal.auditing.journal import Journal
from shiftcal.auditing.measure import Fitted
from shiftcal.auditing.predictors import SEEM_PROBABILITIES, TWO_OUTPUTS, Predictor, are_probabilities, first_rows
from shiftcal.auditing.tables import files_read, read_predictions
from shiftcal.data.match import indices_of
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.experiments.directory import held
from shiftcal.experiments.environment import describe_device, environment, resolve_device
from shiftcal.experiments.gallery import make_audit_gallery
from shiftcal.inference.images import digests_of, images_of, shared_images, source_of
from shiftcal.inference.open_model import Opened
from shiftcal.inference.request import Wanted, decide_preprocessing, open_wanted, read_names, shown
from shiftcal.records.audit import AUDIT, AuditedData, AuditRecord, ModelSeen, read_audit, write_audit
from shiftcal.shifts.corruptions import check_name, named

JOURNAL, ABOUT = "cells.jsonl", "about.json"


@dataclass(frozen=True)
class Ready:
    """A model and images that fit together."""

    predictor: Predictor
    images: Images
    preprocess: Preprocessing
    seen: ModelSeen
    shown: dict[str, Any]
    constants: str
    notes: tuple[str, ...] = ()


def audit_model(
    wanted: Wanted,
    out: Path,
    *,
    on_fitted: Callable[[Fitted], None] | None = None,
    gallery: bool = False,
    progress: bool = True,
) -> AuditRecord:
    """Audit a model in a directory of its own; an interrupted audit continues, a finished one is read.

    `on_fitted` gets the fitted calibrators, unless the audit is only read. With `gallery`, sample images with their
    predictions are written beside the record.
    """
    ready = prepare(wanted, progress=progress)
    about = _about(wanted, ready)
    if (kept := _finished(out, about, progress=progress)) is not None:
        return kept
    with held(out):
        return _audited(wanted, ready, out, Journal(out / JOURNAL, about), on_fitted, gallery, progress)


def _audited(
    wanted: Wanted,
    ready: Ready,
    out: Path,
    journal: Journal,
    on_fitted: Callable[[Fitted], None] | None,
    gallery: bool,
    progress: bool,
) -> AuditRecord:
    if progress and _distributed.rank() == 0:
        for line in _lines(ready):
            say(line)
    if len(journal) and progress and _distributed.rank() == 0:
        say(f"{len(journal)} test sets were measured before the interruption and are kept.")
    started, clock = datetime.now(UTC), time.perf_counter()
    record = audit(
        ready.predictor,
        ready.images,
        preprocess=ready.preprocess,
        corruptions=wanted.corruptions,
        constants=ready.constants,
        frost=wanted.frost,
        bins=wanted.bins,
        batch_size=wanted.batch_size,
        journal=journal,
        about={
            **environment(),
            "started": started.isoformat(timespec="seconds"),
            "device": describe_device(resolve_device(wanted.device)) | {"processes": _distributed.world_size()},
            "model": ready.seen,
            "data": AuditedData(
                name=ready.images.name,
                classes=ready.images.classes,
                counts=ready.images.counts,
                preprocessing=ready.shown,
            ),
            "warnings": ready.notes,
        },
        on_fitted=on_fitted,
        progress=progress,
    )
    record = record.model_copy(update={"seconds": {"audit": time.perf_counter() - clock}})
    if gallery and _distributed.rank() == 0:
        grid = ShiftGrid(wanted.corruptions, ready.constants, wanted.frost)
        size = wanted.batch_size
        make_audit_gallery(
            out, ready.predictor, ready.images, grid, ready.preprocess, batch_size=size, progress=progress
        )
    _write(out, record, journal)
    return record


def read_tables(files: Sequence[Path], classes: Path | None) -> tuple[PredictionSets, tuple[str, ...]]:
    """Read predictions, and the names of their columns where a file has them."""
    names = read_names(classes) if classes is not None else ()
    sets = read_predictions(files, names)
    if names and len(names) != sets.clean.logits.shape[1]:
        raise wrong("classes", f"{sets.clean.logits.shape[1]} names, as the predictions have columns", len(names))
    return sets, names


def audit_tables(
    files: Sequence[Path],
    out: Path,
    *,
    bins: int = 15,
    classes: Path | None = None,
    on_fitted: Callable[[Fitted], None] | None = None,
) -> AuditRecord:
    """Audit predictions from files in a directory of its own; `on_fitted` as in `audit_model`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sets, names = read_tables(files, classes)
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    read = [[file.name, sha256_of(file)] for file in files_read(files)]  # two may have one name
    about = {"files": read, "classes": list(names), "bins": bins, "version": __version__}
    if (kept := _finished(out, about)) is not None:
        return kept
    with held(out):
        journal = Journal(out / JOURNAL, about)
        record = audit_predictions(
            sets,
            name=", ".join(file.name for file in files),
            classes=names,
            bins=bins,
            journal=journal,
            about={
                **environment(),
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "warnings": tuple(str(warning.message) for warning in caught),
            },
            on_fitted=on_fitted,
        )
        _write(out, record, journal)
    return record


def _finished(out: Path, about: Mapping[str, Any], *, progress: bool = True) -> AuditRecord | None:
    """Return the record of the same audit, if it was finished; a directory of something else is an error."""
    if not (out / AUDIT).is_file():
        return None
    record = read_audit(out)
    if (out / ABOUT).is_file() and read_json(out / ABOUT) == about:
        if progress and _distributed.rank() == 0:
            say(f"This audit was finished earlier ({out}; remove it to audit again).")
        return record
    raise RunDirectoryError("out", "a new directory, or that of the same audit", f"{out}, which has another {AUDIT}")


def _write(out: Path, record: AuditRecord, journal: Journal) -> None:
    if _distributed.rank() == 0:
        write_json(out / ABOUT, journal.about)
        write_audit(out / AUDIT, record)
        journal.remove()
    _distributed.barrier()


def _about(wanted: Wanted, ready: Ready) -> dict[str, Any]:
    """Tell one audit from another: by the model's file, the images and how they are measured."""
    tree = {
        "model": ready.seen.model_dump(mode="json"),
        "network": [wanted.network, _code_of(wanted.network), ready.predictor.columns],
        "data": [ready.images.name, list(ready.images.classes), ready.images.counts, digests_of(ready.images)],
        "preprocessing": ready.shown,
        "version": __version__,
        "grid": [list(wanted.corruptions), ready.constants, wanted.frost, wanted.bins],
    }
    return json.loads(json.dumps(tree, default=str))  # type: ignore[no-any-return]


def _code_of(network: str | None) -> str | None:
    """Tell a user's factory from another version of it, by the file that it is in."""
    if network is None or ":" not in network:
        return None
    spec = importlib.util.find_spec(network.partition(":")[0])
    return sha256_of(Path(spec.origin)) if spec is not None and spec.origin and Path(spec.origin).is_file() else None


def _lines(ready: Ready) -> list[str]:
    counts = ", ".join(f"{name} {count}" for name, count in ready.images.counts.items())
    shown = ", ".join(f"{key} {value}" for key, value in ready.shown.items())
    return [
        f"audit  {ready.seen.kind} {ready.seen.name}, {len(ready.images.classes)} classes",
        f"audit  {ready.images.name}: {counts} images",
        f"audit  preprocessing: {shown}",
        *(f"audit  {note}" for note in ready.notes),
    ]


def prepare(wanted: Wanted, *, progress: bool = True) -> Ready:
    """Open the model, read the images, and fit them together: classes by name, and one preprocessing for all."""
    for name in named(wanted.corruptions):  # told before anything is read
        check_name("corruptions", name)
    opened, names = open_wanted(wanted)
    dataset, root = source_of(wanted, opened)
    known = decide_preprocessing(wanted, opened, dataset)
    images = images_of(wanted, dataset, root, known, named=names is not None, progress=progress)
    device = resolve_device(wanted.device)
    preprocess = Preprocessing(known["mean"], known["std"], known.get("input_size"))
    model = opened.model.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    predictor, notes, restricted = _fitted(model, wanted, opened, images, preprocess, names)
    seen = ModelSeen(
        name=opened.name,
        kind=opened.kind,
        sha256=opened.sha256,
        outputs=predictor.outputs,
        restricted=restricted,
    )
    constants = wanted.constants or nearest_constants(images.test.shape[-1])
    foreign = opened.data is None and dataset is not None and "validation" in dataset.cut_from_train
    if foreign:
        notes.append("validation images are cut from the training images, which the model may have seen")
    if (shared := shared_images(images)) == len(images.validation or ()) > 0:
        found = f"{shared} that are test images too: nothing could be fitted on them"
        raise DataError("validation", "other images than the test set's", found)
    if shared:
        notes.append(f"{shared} validation images are test images too: what is fitted on them looks better than it is")
    return Ready(predictor, images, preprocess, seen, shown(known), constants, tuple(notes))


def _fitted(
    model: nn.Module,
    wanted: Wanted,
    opened: Opened,
    images: Images,
    preprocess: Preprocessing,
    names: tuple[str, ...] | None,
) -> tuple[Predictor, list[str], str | None]:
    """Match the model's outputs with the classes of the data, by name where names are known."""
    first = _probe(model, images, preprocess)
    width, outputs = first.shape[1], wanted.outputs or opened.outputs or "logits"
    if wanted.outputs is None and opened.outputs is None and are_probabilities(first):
        expected = "given: --outputs probabilities, or --outputs logits if they are"
        raise DataError("outputs", expected, SEEM_PROBABILITIES)
    notes: list[str] = []
    if names is None:
        if width == 1:
            raise DataError("model", f"one with {TWO_OUTPUTS}", "1 output")
        if width != len(images.classes):
            expected = f"of {len(images.classes)} classes, as the data has (--classes FILE names its outputs)"
            raise DataError("model", expected, f"one with {width} outputs")
        order = ", ".join(f"{k} = {name}" for k, name in enumerate(images.classes[:4])) + ", …" * (width > 4)
        notes.append(
            f"the model does not name its classes: the order of the data's names is taken for theirs ({order})"
        )
        return Predictor(model, outputs), notes, None
    if len(names) != width:
        raise DataError("classes", f"{width} names, as the model has outputs", len(names))
    columns = indices_of(images.classes, names).tolist()
    if columns == list(range(width)):
        return Predictor(model, outputs), notes, None
    restricted = None
    if len(columns) < width:
        restricted = f"the softmax is over the {len(columns)} of {width} classes that the data has"
        notes.append(restricted)
    return Predictor(model, outputs, columns), notes, restricted


def _probe(model: nn.Module, images: Images, preprocess: Preprocessing) -> Tensor:
    """Send a few images through the model."""
    try:
        return first_rows(model, images.test, preprocess)
    except DataError:
        raise
    except Exception as error:  # whatever somebody else's model raises
        found = f"{reason_of(error)} for images {list(images.test.shape)} (--size brings them to another one)"
        raise DataError("model", "one that takes these images", found) from None
