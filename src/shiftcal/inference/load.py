"""`shiftcal.load`: a model with its calibrator, from a shared folder or a run, that predicts images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from shiftcal._errors import DataError, check_count, wrong
from shiftcal.data.files.images import fit_image
from shiftcal.data.files.listing import list_images
from shiftcal.data.split import ImageSplit, MemorySplit
from shiftcal.inference.classifier import Classifier, open_classifier, own_calibrator
from shiftcal.inference.predict import probabilities_of, split_of_files
from shiftcal.inference.request import Wanted, fit_of

Place = str | os.PathLike[str]
_EXPECTED = "uint8 [N, 3, H, W], a folder of images, or a list of files"


@final
class LoadedModel:
    """A model that gives calibrated probabilities of images.

    Attributes:
        classes: The names of the probabilities' columns, if they are known.
        calibrator: The kind of its calibrator; None where probabilities are as the model gives them.
    """

    def __init__(self, classifier: Classifier, device: str = "auto") -> None:
        self._classifier, self._device = classifier, device
        self.classes, self.calibrator = classifier.classes, classifier.calibrator

    def __repr__(self) -> str:
        count = len(self.classes) if self.classes is not None else "unnamed"
        return f"LoadedModel({self._classifier.opened.name}, {count} classes, calibrator {self.calibrator})"

    def predict(self, images: Any, *, batch_size: int = 64) -> Tensor:
        """Return the probabilities of images, [N, K], on the CPU; by the same code as `shiftcal predict`.

        Args:
            images: Stored images, uint8 [N, 3, H, W], as a tensor or an array; or a folder, whose images are taken in
                order of their paths; or a list of files.
            batch_size: Images at a time.
        """
        check_count("batch_size", batch_size)
        split, names = self._split(images)
        found = list(probabilities_of(self._classifier, split, batch_size, self._device))
        seen = torch.cat([index for index, _ in found]).tolist() if found else []
        if missing := sorted(set(range(len(split))) - set(seen)):
            told = f"{len(missing)} of {len(split)} that cannot be read, such as {names[missing[0]]}"
            raise DataError("images", "readable", told)
        return torch.cat([probabilities for _, probabilities in found])

    def _split(self, images: Any) -> tuple[ImageSplit, Sequence[Path]]:
        known = self._classifier.known
        if isinstance(images, str | os.PathLike):
            files: Sequence[Path] = list_images(Path(images))
        elif isinstance(images, Tensor | np.ndarray):
            return self._in_memory(torch.as_tensor(images)), ()
        elif isinstance(images, Sequence) and images and all(isinstance(file, str | os.PathLike) for file in images):
            files = [Path(file) for file in images]
        else:
            raise wrong("images", _EXPECTED, f"a {type(images).__name__}")
        return split_of_files(files, known)[0], files

    def _in_memory(self, images: Tensor) -> MemorySplit:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or len(images) == 0:
            raise wrong("images", _EXPECTED, f"{images.dtype} {list(images.shape)}")
        known, images = self._classifier.known, images.cpu()
        if (size := known.get("size")) is not None:
            images = torch.stack([fit_image(image, size, fit_of(known)) for image in images])
        return MemorySplit(images, torch.zeros(len(images), dtype=torch.int64))


def load(
    place: Place,
    *,
    calibrator: Place | None = None,
    trust: bool = False,
    device: str = "auto",
) -> LoadedModel:
    """Open a folder that `shiftcal card` wrote, the directory of a run, or an exported model.

    Args:
        place: The folder, or a `.onnx` or `.pt2` file of `shiftcal export`, or "timm/NAME".
        calibrator: A file of `shiftcal audit --calibrate`; by default calibrator.safetensors in the folder, if there
            is one.
        trust: Whether code of other packages that the folder names, or that a `.pt2` file holds, may run.
        device: "auto", "cpu" or "cuda".
    """
    wanted = Wanted(model=os.fspath(place), trust=trust, device=device)
    chosen = Path(calibrator) if calibrator is not None else own_calibrator(wanted.model)
    return LoadedModel(open_classifier(wanted, chosen), device)
