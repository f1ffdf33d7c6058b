"""`shiftcal export`: from what a user names to one file that gives calibrated probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shiftcal._errors import DataError, wrong
from shiftcal.auditing.export import Agreement, check_format, export
from shiftcal.data.files.images import read_images
from shiftcal.data.files.listing import list_images
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.inference.classifier import Classifier, open_classifier
from shiftcal.inference.request import Wanted, fit_of, shown

IMAGES = 64  # to compare with


@dataclass(frozen=True)
class Exported:
    """What was written: the agreement with PyTorch, what it was compared on, in words, and notes for the user."""

    agreement: Agreement
    compared_on: str
    calibrator: str | None
    notes: tuple[str, ...]


def export_model(wanted: Wanted, calibrator: Path | None, to: Path) -> Exported:
    """Write a model with its calibrator as one `.onnx` or `.pt2` file, and compare it with PyTorch.

    Args:
        wanted: The model; `data` is a folder of images to compare on, by default the run's own test images.
        calibrator: What `shiftcal audit --calibrate` wrote, or None.
        to: The file.
    """
    check_format(to)
    classifier = open_classifier(wanted, calibrator)
    if classifier.opened.kind in ("onnx", "exported program"):
        raise wrong("MODEL", "a run, a checkpoint or timm/NAME: this one is exported already", wanted.model)
    images, compared_on, notes = _images(wanted, classifier)
    with torch.inference_mode():
        classifier.check_width(classifier.module(images[:1]).shape[1])
    agreement = export(classifier.module, images, to, _metadata(classifier, images))
    if agreement.on_steps:
        notes.append(f"{agreement.on_steps} images lie on a step of the calibrator, where rounding decides")
    return Exported(agreement, compared_on, classifier.calibrator, (*classifier.notes, *notes))


def _metadata(classifier: Classifier, images: Tensor) -> dict[str, Any]:
    known, (height, width) = dict(classifier.known), images.shape[-2:]
    if "input_size" not in known and height == width:
        known["size"] = height
    return {
        "outputs": "probabilities",
        "classes": list(classifier.classes) if classifier.classes is not None else None,
        "preprocessing": shown(known),
        "calibrator": classifier.calibrator,
    }


def _images(wanted: Wanted, classifier: Classifier) -> tuple[Tensor, str, list[str]]:
    """Find normalised images to compare on: a folder's, the run's own, or random ones with a note."""
    known = classifier.known
    size = known.get("size")
    if wanted.data is not None:
        preprocess = Preprocessing(known["mean"], known["std"], known.get("input_size"))
        files = _spread(list_images(Path(wanted.data)))
        images, _ = read_images(files, size=size, fit=fit_of(known), progress=False)
        return preprocess(images), f"{len(images)} images of {wanted.data}", []
    preprocess = Preprocessing(known["mean"], known["std"], known.get("input_size") or wanted.size)
    reason = "no images are known (--data FOLDER)"
    if classifier.opened.data is not None:
        try:
            test = classifier.opened.data().test
        except (ValueError, OSError) as error:
            reason = f"the run's own could not be loaded: {error}"
        else:
            chosen = torch.zeros(len(test), dtype=torch.bool)
            chosen[_spread(range(len(test)))] = True
            some = test.take(chosen.to(test.targets.device)).to("cpu")
            found = torch.cat([part.images for _, part in some.parts(IMAGES)])
            return preprocess(found), f"{len(found)} test images of the run", []
    side = size or known.get("input_size")
    if side is None:
        raise DataError("size", "given (--size N, or --data FOLDER): the model does not tell it", "nothing")
    images = torch.randint(0, 256, (8, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return preprocess(images), f"{len(images)} random images", [f"compared on random images: {reason}"]


def _spread(items: Any) -> Any:
    """Take some items, evenly spread."""
    step = max(len(items) // IMAGES, 1)
    return list(items[::step][:IMAGES])
