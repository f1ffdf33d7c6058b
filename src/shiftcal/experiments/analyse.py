"""`shiftcal analyse`: what studies measure on finished runs, as small arrays beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shiftcal._errors import DataError, unknown, wrong
from shiftcal._progress import Progress
from shiftcal.analysis.gradcam import grad_cam
from shiftcal.analysis.strips import filtered_strips
from shiftcal.analysis.wasserstein import mixed_distances, shift_distances
from shiftcal.data.split import ImageSplit, MemorySplit
from shiftcal.evaluation import Parts, device_of
from shiftcal.experiments.finished_runs import FinishedRun, check_same_classes, labels_of, open_finished, thinned
from shiftcal.experiments.gallery import make_gallery, middle_cells
from shiftcal.experiments.noise import noise_arrays
from shiftcal.records import find_runs
from shiftcal.records.arrays import Arrays, write_arrays


@dataclass(frozen=True)
class Asked:
    """What a user may choose.

    Attributes:
        images: How many images Grad-CAM and strips show.
        shift: The shift whose images Grad-CAM looks at; None is the clean test set.
        severity: Its severity; the middle one by default.
        layer: The layer of Grad-CAM; found by default.
        qualities: λ of strips and of the distances by λ; by default the paper's.
        ratios: ρ of the distances by ρ; by default the paper's.
        quality: λ of the distances by ρ.
        ratio: ρ of the distances by λ.
        samples: How many images features are of.
        pairs: How many pairs of batches gradient noise is measured on.
        look: How many images of each test set a gallery looks at.
    """

    images: int = 8
    shift: str | None = None
    severity: int | None = None
    layer: str | None = None
    qualities: tuple[int, ...] = ()
    ratios: tuple[float, ...] = ()
    quality: int = 15
    ratio: float = 0.1
    samples: int = 4096
    pairs: int = 16
    look: int = 1000

    def __post_init__(self) -> None:
        for name in ("images", "samples", "pairs", "look"):
            if getattr(self, name) < 1:
                raise wrong(name, "positive", getattr(self, name))
        for quality in (*self.qualities, self.quality):
            if not 1 <= quality <= 100:
                raise wrong("qualities", "in 1..100", quality)
        for ratio in (*self.ratios, self.ratio):
            if not 0 <= ratio <= 1:
                raise wrong("ratios", "in 0..1", ratio)


def analyse(
    kind: str,
    places: Sequence[Path],
    out: Path | None = None,
    asked: Asked | None = None,
    *,
    root: Path | None = None,
    device: str = "auto",
    trust: bool = False,
    progress: bool = True,
) -> list[Path]:
    """Measure one kind on finished runs, and write the arrays; returns the files.

    Args:
        kind: A name in `KINDS`.
        places: Directories of runs, or directories that hold some.
        out: Where KIND.npz goes; by default the directory of the only run. Galleries go beside each run's record.
        asked: What to measure.
        root: Where the data is, if not where the runs found it.
        device: Where to compute.
        trust: Import and call functions of other packages that the runs' configs name.
        progress: Show progress.
    """
    if kind not in KINDS:
        raise unknown("KIND", kind, KINDS)
    paths = list(dict.fromkeys(run for place in places for run in find_runs(place)))
    if out is None and len(paths) > 1 and kind != "gallery":
        raise wrong("out", f"given (--out DIR) for the arrays of {len(paths)} runs", "nothing")
    runs = [open_finished(path, root=root, device=device, trust=trust) for path in paths]
    if kind == "gallery":
        return [_gallery(run, _place(run, out, len(runs)), asked or Asked(), progress) for run in runs]
    check_same_classes(runs)
    found = _KINDS[kind](runs, asked or Asked(), progress)
    place = out or paths[0]
    place.mkdir(parents=True, exist_ok=True)
    write_arrays(place / f"{kind}.npz", found)
    return [place / f"{kind}.npz"]


def _place(run: FinishedRun, out: Path | None, count: int) -> Path:
    place = run.path if out is None else out if count == 1 else out / run.path.resolve().name
    place.mkdir(parents=True, exist_ok=True)
    return place


def _few(run: FinishedRun, asked: Asked) -> tuple[str, MemorySplit]:
    """Take the images to show: clean ones, or those of a shift at a severity."""
    split: Parts = run.dataset.test
    title = "clean"
    if asked.shift is not None:
        own = [cell for cell in run.cells() if cell[0] == asked.shift]
        if not own:
            raise unknown("shift", asked.shift, {name for name, _, _ in run.cells()})
        at = middle_cells(own)[0][1] if asked.severity is None else asked.severity
        cells = [cell for cell in own if cell[1] == at]
        if not cells:
            raise wrong("severity", f"one of {[severity for _, severity, _ in own]}", at)
        split, title = cells[0][2], asked.shift if at is None else f"{asked.shift} {at}"
    _, part = next(iter(thinned(split, asked.images).to(device_of(run.model)).parts(asked.images)))
    return title, part


def _pixels(images: Tensor) -> Any:
    return images.movedim(-3, -1).cpu().numpy()


def _gradcam(runs: Sequence[FinishedRun], asked: Asked, progress: bool) -> Arrays:
    title, part = _few(runs[0], asked)
    maps, predicted, confidence = [], [], []
    with Progress("gradcam", len(runs), enabled=progress) as bar:
        for run in runs:
            inputs = run.preprocess(part.images)
            with torch.inference_mode():
                sure, classes = run.model(inputs).float().softmax(-1).max(-1)
            found = grad_cam(run.model, inputs, classes.clone(), asked.layer)
            size = part.images.shape[-2:]
            found = nn.functional.interpolate(found[:, None], size, mode="bilinear", align_corners=False)[:, 0]
            maps.append(found.cpu().numpy().astype(np.float16))
            predicted.append(classes.cpu().numpy())
            confidence.append(sure.cpu().numpy())
            bar.advance()
        bar.line(f"{len(part)} images, {len(runs)} models")
    arrays = {
        "images": _pixels(part.images),
        "targets": part.targets.cpu().numpy(),
        "maps": np.stack(maps),
        "predicted": np.stack(predicted),
        "confidence": np.stack(confidence),
    }
    labels = {"runs": labels_of(runs), "classes": list(runs[0].dataset.classes), "shift": title}
    return Arrays("gradcam", arrays, labels)


def _strips(runs: Sequence[FinishedRun], asked: Asked, progress: bool) -> Arrays:  # noqa: ARG001 (it is fast)
    qualities = asked.qualities or (50, 25, 18, 15, 10, 5)
    _, part = _few(runs[0], replace(asked, shift=None))
    images = filtered_strips(part.images, qualities)
    return Arrays("strips", {"images": _pixels(images), "qualities": np.array(qualities)}, {})


def _features(runs: Sequence[FinishedRun], asked: Asked, progress: bool) -> Arrays:
    qualities, ratios = asked.qualities or (25, 18, 15, 10, 7), asked.ratios or (0.05, 0.1, 0.2, 0.4)
    cells = [middle_cells(run.cells()) for run in runs]
    passes = 1 + len({*qualities, asked.quality}) + len(qualities) + len(ratios) + 1 + len(cells[0])
    rows: list[tuple[tuple[float, ...], ...]] = []
    with Progress("features", passes * len(runs), enabled=progress) as bar:
        for run, own in zip(runs, cells, strict=True):
            train, size = thinned(run.dataset.train, asked.samples), run.config.evaluation.batch_size
            if not isinstance(train, ImageSplit):
                raise DataError("data", "images in memory or on disk", type(train).__name__)
            mixed = mixed_distances(
                run.model,
                train,
                run.preprocess,
                qualities=qualities,
                ratios=ratios,
                quality=asked.quality,
                ratio=asked.ratio,
                batch_size=size,
                advance=bar.advance,
            )
            test = thinned(run.dataset.test, asked.samples)
            shifts = (thinned(split, asked.samples) for _, _, split in own)
            far = shift_distances(run.model, test, shifts, run.preprocess, batch_size=size, advance=bar.advance)
            rows.append((mixed.by_quality, mixed.by_ratio, far))
            bar.line(f"{labels_of(runs)[len(rows) - 1]} done")
    names = ("by_quality", "by_ratio", "by_shift")
    arrays = {name: np.array([row[k] for row in rows], dtype=float) for k, name in enumerate(names)}
    arrays |= {"qualities": np.array(qualities), "ratios": np.array(ratios, dtype=float)}
    shifts_named = [name if severity is None else f"{name} {severity}" for name, severity, _ in cells[0]]
    labels = {"runs": labels_of(runs), "shifts": shifts_named, "quality": asked.quality, "ratio": asked.ratio}
    return Arrays("features", arrays, labels | {"samples": asked.samples})


def _gallery(run: FinishedRun, place: Path, asked: Asked, progress: bool) -> Path:
    size = run.config.evaluation.batch_size
    test, cells, classes = run.dataset.test, run.cells(), run.dataset.classes
    return make_gallery(
        place, run.model, test, cells, run.preprocess, classes, look=asked.look, batch_size=size, progress=progress
    )


def _noise(runs: Sequence[FinishedRun], asked: Asked, progress: bool) -> Arrays:
    return noise_arrays(runs, pairs=asked.pairs, progress=progress)


_KINDS: dict[str, Callable[[Sequence[FinishedRun], Asked, bool], Arrays]] = {
    "gradcam": _gradcam,
    "features": _features,
    "noise": _noise,
    "strips": _strips,
}
KINDS = (*_KINDS, "gallery")
