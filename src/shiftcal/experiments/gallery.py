"""gallery.json: sample images of each test set with predictions, small enough to lie beside a record."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from torch import nn

from shiftcal._progress import Progress
from shiftcal.analysis.gallery import Shown, middle_severity, samples_of, thumbnail_of
from shiftcal.auditing.audit import Images
from shiftcal.auditing.grid import ShiftGrid
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import ImageSplit
from shiftcal.evaluation import Parts
from shiftcal.records.gallery import Sample, write_gallery

LARGEST = 390_000  # characters of the pictures and their labels
# Pixels of a thumbnail, mistakes and right ones of each set: the first that fits is taken.
_SIZES = ((64, 6, 2), (64, 4, 2), (48, 4, 2), (48, 3, 1), (32, 4, 1), (32, 3, 1), (32, 2, 1), (24, 2, 1), (16, 1, 1))
_AROUND = 160  # characters of a sample beside its picture and names

Cells = Iterable[tuple[str, int | None, Parts]]


def make_gallery(
    directory: Path,
    model: nn.Module,
    test: ImageSplit,
    cells: Cells,
    preprocess: Preprocessing,
    classes: Sequence[str],
    *,
    look: int = 1000,
    batch_size: int = 250,
    progress: bool = True,
) -> Path:
    """Choose samples of the clean set and of each shift at its middle severity, and write gallery.json."""
    chosen = [(None, None, test), *middle_cells(cells)]
    found: list[Shown] = []
    with Progress("gallery", len(chosen), enabled=progress) as bar:
        for shift, severity, split in chosen:
            size = min(batch_size, look)
            found += samples_of(model, split, preprocess, shift=shift, severity=severity, look=look, batch_size=size)
            bar.advance()
        bar.line(f"{len(found)} images of {len(chosen)} test sets")
    return write_gallery(directory, fitting(found, classes))


def make_audit_gallery(
    directory: Path,
    model: nn.Module,
    images: Images,
    grid: ShiftGrid,
    preprocess: Preprocessing,
    *,
    batch_size: int,
    progress: bool,
) -> Path:
    """Write gallery.json of an audit; looking at a quarter of the images of each shift takes little of its time."""
    return make_gallery(
        directory,
        model,
        images.test,
        grid.cells(images.test, images.shifts),
        preprocess,
        images.classes,
        look=min(1000, max(100, len(images.test) // 4)),
        batch_size=batch_size,
        progress=progress,
    )


def middle_cells(cells: Cells) -> list[tuple[str, int | None, Parts]]:
    """Keep each shift at its middle severity."""
    by_shift: dict[str, dict[int | None, Parts]] = {}
    for name, severity, split in cells:
        by_shift.setdefault(name, {})[severity] = split
    middles = {name: middle_severity(list(splits)) for name, splits in by_shift.items()}
    return [(name, middles[name], splits[middles[name]]) for name, splits in by_shift.items()]


def fitting(found: Sequence[Shown], classes: Sequence[str], largest: int = LARGEST) -> tuple[Sample, ...]:
    """Encode samples so that all together are no larger than `largest`: smaller ones, or fewer of each set."""
    samples: tuple[Sample, ...] = ()
    for pixels, mistakes, right in _SIZES:
        samples = tuple(_sample(one, classes, pixels) for one in _fewer(found, mistakes, right))
        if sum(map(_length, samples)) <= largest:
            return samples
    kept, total = [], 0
    for sample in samples:
        total += _length(sample)
        if total > largest:
            break
        kept.append(sample)
    return tuple(kept)


def _fewer(found: Sequence[Shown], mistakes: int, right: int) -> list[Shown]:
    kept: list[Shown] = []
    counts: dict[tuple[str | None, int | None, bool], int] = {}
    for one in found:
        key = (one.shift, one.severity, one.right)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= (right if one.right else mistakes):
            kept.append(one)
    return kept


def _sample(one: Shown, classes: Sequence[str], pixels: int) -> Sample:
    buffer = io.BytesIO()
    image = np.ascontiguousarray(thumbnail_of(one.thumbnail, pixels).permute(1, 2, 0).numpy())
    Image.fromarray(image).save(buffer, format="PNG", optimize=True)
    return Sample(
        shift=one.shift,
        severity=one.severity,
        true=classes[one.true],
        predicted=classes[one.predicted],
        confidence=one.confidence,
        right=one.right,
        png=base64.b64encode(buffer.getvalue()).decode(),
    )


def _length(sample: Sample) -> int:
    return len(sample.png) + len(sample.true) + len(sample.predicted) + len(sample.shift or "") + _AROUND
