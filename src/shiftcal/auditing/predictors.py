"""Anything that classifies images, as a module that takes preprocessed images and gives logits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from shiftcal._errors import DataError, reason_of, wrong
from shiftcal._tensors import at_least_float32
from shiftcal.calibrators.base import Calibrator
from shiftcal.data.split import ImageSplit, first_of
from shiftcal.evaluation import device_of, evaluating

Outputs = Literal["logits", "probabilities"]
METADATA = "shiftcal"  # under this key our exports say what they take and give
TWO_OUTPUTS = "an output for each class (wrap one with a single logit z: torch.stack([0 * z, z], -1))"
SEEM_PROBABILITIES = "rows that lie in [0, 1] and sum to 1: these are probabilities, it seems"
_FEW = 8  # images that show what a model gives
_SMALLEST = torch.finfo(torch.float64).tiny  # of a probability, as in `metrics.nll`


class Predictor(nn.Module):
    """A model whose outputs become logits, of some of its classes if asked.

    Args:
        model: Returns a tensor [N, K], a mapping or object that has it as `logits`, or a sequence that begins with it.
        outputs: Whether that holds logits or probabilities.
        columns: Which of the K columns count, in the order of the data's classes; all by default. The softmax is then
            over these alone.
    """

    def __init__(self, model: nn.Module, outputs: Outputs = "logits", columns: Sequence[int] | None = None) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs
        self.columns = None if columns is None else list(columns)

    def forward(self, images: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n classes"]:
        """Return logits."""
        found = tensor_of(self.model(images))
        if self.outputs == "probabilities":
            if not torch.compiler.is_compiling():  # nor exporting
                check_probabilities(found)
            found = found.double().clamp_min(_SMALLEST).log()
        return found if self.columns is None else found[:, self.columns]


class Calibrated(nn.Module):
    """A predictor and a calibrator of its logits, if there is one, as one module: images to probabilities."""

    def __init__(self, predictor: Predictor, calibrator: Calibrator | None = None) -> None:
        super().__init__()
        self.predictor, self.calibrator = predictor, calibrator

    def forward(self, images: Float[Tensor, "n 3 height width"]) -> Float[Tensor, "n classes"]:
        """Return probabilities."""
        return self.from_logits(at_least_float32(self.predictor(images)))

    def from_logits(self, logits: Float[Tensor, "n classes"]) -> Float[Tensor, "n classes"]:
        """Return the probabilities of the predictor's logits."""
        calibrated: Tensor = logits if self.calibrator is None else self.calibrator(logits)
        return calibrated.softmax(-1).float()


def tensor_of(output: Any) -> Tensor:
    """Find the logits in what a model returns."""
    if isinstance(output, Tensor):
        found = output
    elif isinstance(output, Mapping) and isinstance(output.get("logits"), Tensor):
        found = output["logits"]
    elif isinstance(getattr(output, "logits", None), Tensor):
        found = output.logits
    elif isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        found = output[0]
    else:
        kind = (
            f"a dictionary with {', '.join(map(str, output))}" if isinstance(output, Mapping) else type(output).__name__
        )
        raise DataError("model", "one that returns logits, or something with `logits`", kind)
    if found.ndim != 2:
        raise DataError("model", "one that returns a row of logits for each image, [N, K]", list(found.shape))
    return found


def first_rows(model: nn.Module, split: ImageSplit, preprocess: Callable[[Tensor], Tensor]) -> Float[Tensor, "n k"]:
    """Send a few images through a model; what it keeps of them is no inference tensor: it may be trained later."""
    part = first_of(split, _FEW).to(device_of(model))
    with evaluating(model), torch.no_grad():
        return tensor_of(model(preprocess(part.images)))


def are_probabilities(rows: Tensor) -> bool:
    """Tell whether rows lie in [0, 1] and sum to 1."""
    rows = rows.detach()
    low, high = torch.aminmax(rows)
    off = (rows.double().sum(1) - 1).abs().max()
    return float(low) >= 0 and float(high) <= 1 + 1e-3 and float(off) <= 1e-2


def check_probabilities(rows: Tensor) -> None:
    """Raise unless rows are probabilities."""
    if not are_probabilities(rows):
        low, high = torch.aminmax(rows.detach())
        sums = rows.detach().double().sum(1)
        found = f"values from {float(low):.3g} to {float(high):.3g}, rows that sum to {float(sums[0]):.4g}"
        raise DataError("outputs", "probabilities (--outputs logits, if they are logits)", found)


def check_logits(
    model: nn.Module, rows: Tensor, classes: int, hint: str = ' Wrap it: Predictor(model, "probabilities").'
) -> None:
    """Raise unless a model's rows have a column for each class, and hold logits; a `Predictor` says what it holds."""
    if rows.shape[1] != classes:
        if rows.shape[1] == 1:
            raise DataError("model", f"one with {TWO_OUTPUTS}", "1 output")
        raise DataError("model", f"one with an output for each of the {classes} classes", f"{rows.shape[1]} outputs")
    if not isinstance(model, Predictor) and are_probabilities(rows):
        raise DataError("model", "one that returns logits", SEEM_PROBABILITIES, hint)


class OnnxModel(nn.Module):
    """An ONNX model, run by onnxruntime (extra `onnx`) on the CPU, or on a GPU where its package has one.

    A model with a fixed batch is fed so many images at a time, the last ones filled up.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.session = _session(path)
        inputs = self.session.get_inputs()
        images = [i for i in inputs if len(i.shape) == 4]
        if len(inputs) != 1 or len(images) != 1:
            found = ", ".join(f"{i.name} {i.shape}" for i in inputs) or "none"
            raise DataError("model", "an ONNX model with one input, images [N, 3, H, W]", f"{path.name} with {found}")
        [one] = images
        if one.type not in ("tensor(float)", "tensor(float16)", "tensor(double)"):
            raise DataError("model", "an ONNX model of floating-point images", f"{path.name} with {one.type}")
        self.dtype = {"tensor(float16)": np.float16, "tensor(double)": np.float64}.get(one.type, np.float32)
        self.input, self.shape = one.name, list(one.shape)
        self.batch = self.shape[0] if isinstance(self.shape[0], int) else None
        self.metadata = metadata_of(dict(self.session.get_modelmeta().custom_metadata_map))
        names = [output.name for output in self.session.get_outputs()]
        self.output = next((name for name in ("logits", "probabilities") if name in names), names[0])
        if self.output == "probabilities":  # it says so itself
            self.metadata = {"outputs": "probabilities"} | self.metadata

    @property
    def size(self) -> int | None:
        """The side of the images it takes, if it takes square ones of one size alone."""
        height, width = self.shape[2:]
        return height if isinstance(height, int) and height == width else None

    def forward(self, images: Tensor) -> Tensor:
        """Return what the model's first output, or the one named logits, gives."""
        array = images.detach().cpu().numpy().astype(self.dtype)
        rows = [self._run(part) for part in self._batches(array)]
        return torch.from_numpy(np.concatenate(rows)[: len(array)]).to(images.device)

    def _batches(self, array: Any) -> list[Any]:
        if self.batch is None:
            return [array]
        missing = -len(array) % self.batch
        filled = np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array
        return np.split(filled, len(filled) // self.batch)

    def _run(self, array: Any) -> Any:
        try:
            return self.session.run([self.output], {self.input: array})[0]
        except Exception as error:  # onnxruntime has types of its own
            found = f"{reason_of(error)} (its input is {self.input} {self.shape}, the images are {list(array.shape)})"
            raise DataError("model", "an ONNX model that takes these images", found) from None


def _session(path: Path) -> Any:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # newer versions keep an id of the machine, and send events
    try:
        import onnxruntime
    except ImportError:
        expected = "a PyTorch model, or onnxruntime installed (pip install 'shiftcal[onnx]')"
        raise wrong("model", expected, str(path)) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=onnxruntime.get_available_providers())
    except Exception as error:  # onnxruntime has types of its own
        raise DataError("model", "a whole ONNX model", f"{path}: {reason_of(error)}") from None


class ProgramModel(nn.Module):
    """A program of torch.export's as a module: in one mode alone, since its own refuses `eval`, and on any device.

    A program names devices inside, so that moving its tensors would not be enough.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        super().__init__()
        self.program, self.module = program, program.module()

    def train(self, mode: bool = True) -> ProgramModel:
        """Stay as exported, whatever the mode."""
        self.training = mode
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ProgramModel:  # noqa: ARG002
        from torch.export.passes import move_to_device_pass

        tensors = [*self.module.parameters(), *self.module.buffers()]
        device = fn(torch.empty(0, device=tensors[0].device if tensors else "cpu")).device  # what `to` asks for
        if any(tensor.device != device for tensor in tensors):
            self.program = move_to_device_pass(self.program, device)
            self.module = self.program.module()
        return self

    def forward(self, images: Tensor) -> Any:
        """Return what the program gives."""
        try:
            return self.module(images.contiguous())
        except Exception as error:  # a guard of the program's, such as a batch size that was exported as fixed
            found = f"{reason_of(error)} for images {list(images.shape)}"
            hint = " Export it with a dynamic batch (torch.export.Dim), or use `shiftcal export`."
            raise DataError("model", "a program that takes these images", found, hint) from None


def exported_program(path: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Load what `torch.export.save` wrote, and what our export says of it. Loading may run code: trust it first."""
    extra = {METADATA: ""}
    try:
        with path.open("rb") as file:
            model = ProgramModel(torch.export.load(file, extra_files=extra))
    except Exception as error:  # of a damaged archive
        raise DataError("model", "a whole torch.export program", f"{path}: {reason_of(error)}") from None
    return model, metadata_of(extra)


def metadata_of(stored: Mapping[str, str]) -> dict[str, Any]:
    """Read what our export wrote beside a model."""
    try:
        content = json.loads(stored.get(METADATA) or "{}")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
