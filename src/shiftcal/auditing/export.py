"""A model and its calibrator as one file, ONNX or torch.export's, and whether the file gives what they give."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shiftcal._errors import ExportError, reason_of, wrong
from shiftcal._io import replacing
from shiftcal.auditing.predictors import METADATA, Calibrated, OnnxModel, exported_program

TOLERANCE = 1e-4  # of a probability
FORMATS = (".onnx", ".pt2")
_NUDGE = 1e-5  # of the largest logit: what another order of summing may change
_NUDGES = 32


@dataclass(frozen=True)
class Agreement:
    """What a file gives against what the model gives.

    Attributes:
        difference: The largest difference of a probability, but for images on a step.
        images: How many images were compared.
        on_steps: How many of them lie so near a step of the calibrator that rounding decides on which side.
    """

    difference: float
    images: int
    on_steps: int


def check_format(path: Path) -> None:
    """Raise unless a file can be written: its name tells a format whose packages are installed."""
    if path.suffix not in FORMATS:
        raise wrong("to", f"a file that ends in {' or '.join(FORMATS)}", str(path))
    if not path.parent.is_dir():
        raise wrong("to", "a file in a folder that exists", str(path))
    needed = ("onnx", "onnxruntime", "onnxscript") if path.suffix == ".onnx" else ()
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise wrong("to", f"a .pt2 file, or {', '.join(missing)} installed (pip install 'shiftcal[onnx]')", str(path))


def export(module: Calibrated, images: Tensor, path: Path, metadata: Mapping[str, Any]) -> Agreement:
    """Write a module as one file, with any batch size; it takes its place once it gives what the module gives.

    Args:
        module: Takes normalised images, gives probabilities.
        images: Normalised images [N, 3, H, W] to compare with; their size becomes the file's.
        path: An `.onnx` or a `.pt2` file.
        metadata: What the file says of itself, under the key `shiftcal`.
    """
    check_format(path)
    module.eval()
    images = images.contiguous()
    example = images[:2] if len(images) > 1 else images.repeat(2, 1, 1, 1)  # traced with one, it would take one alone
    with replacing(path) as temporary:
        try:
            with _quiet(), torch.no_grad():
                content = (_onnx if path.suffix == ".onnx" else _program)(module, example, json.dumps(metadata))
        except Exception as error:  # of many types, with pages of text
            raise ExportError(path, f"PyTorch cannot export this model ({reason_of(error)})") from None
        temporary.write_bytes(content)
        written = OnnxModel(temporary) if path.suffix == ".onnx" else exported_program(temporary)[0]
        found = compare(module, written, images)
        if not found.difference <= TOLERANCE:
            reason = f"it differs from PyTorch by {found.difference:.2g}, more than {TOLERANCE:g}"
            raise ExportError(path, f"{reason}, on {found.images} images")
    return found


def _onnx(module: nn.Module, images: Tensor, metadata: str) -> bytes:
    program: Any = torch.onnx.export(
        module,
        (images,),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        input_names=["images"],
        output_names=["probabilities"],
        external_data=False,
        verbose=False,
    )
    program.model.metadata_props[METADATA] = metadata
    content: bytes = program.model_proto.SerializeToString()
    return content


def _program(module: nn.Module, images: Tensor, metadata: str) -> bytes:
    program = torch.export.export(module, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA: metadata})
    return buffer.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' warnings, which are about their own insides, from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def compare(module: Calibrated, written: nn.Module, images: Tensor) -> Agreement:
    """Compare what a file gives with what its module gives, for all images at once and for the first one alone."""
    with torch.inference_mode():
        logits = module.predictor(images)
        expected, found = module.from_logits(logits), written(images)
        apart = (found - expected).abs().amax(1)
        near = _between_nudges(module, logits, found) & (apart > TOLERANCE)
        alone = float((written(images[:1]) - found[:1]).abs().max())
    rest = float(apart[~near].max()) if not bool(near.all()) else 0.0
    return Agreement(max(rest, alone), len(images), int(near.sum()))


def _between_nudges(module: Calibrated, logits: Tensor, found: Tensor) -> Tensor:
    """Tell for which rows a change of the logits by rounding alone may give what was found.

    Histogram binning is a step function, and isotonic regression nearly one.
    """
    generator = torch.Generator().manual_seed(0)
    scale = _NUDGE * logits.abs().amax(1, keepdim=True).clamp_min(1)
    some = [2 * torch.rand(logits.shape, generator=generator, dtype=logits.dtype) - 1 for _ in range(_NUDGES)]
    around = torch.stack([module.from_logits(logits + scale * nudge) for nudge in some])
    inside = (found >= around.amin(0) - TOLERANCE) & (found <= around.amax(0) + TOLERANCE)
    return inside.all(1)
