"""Weights from files: ours, timm's, or a state dict that somebody saved. Nothing in a file is ever executed."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from shiftcal._errors import wrong

_CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "weights")  # keys under which people save a state dict
_LOSSES = ("loss", "criterion", "loss_fn", "loss_function")  # beside a model in a training module
_SHOWN = 3
CLASSES = "classes"  # key of the class names among the metadata of a safetensors file


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a safetensors file, or from what `torch.save` wrote, alone or among other things."""
    if not path.is_file():
        raise wrong("weights", "a file", str(path))
    content = _read(path)
    for key in _CONTAINERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise wrong("weights", "a state dict, names and their tensors", f"{path}, which holds {_kind(content)}")
    for name, tensor in content.items():
        if not isinstance(name, str):
            raise wrong("weights", "a state dict, names and their tensors", f"{path}, with the key {name!r}")
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            kind = "meta" if tensor.is_meta else "quantised" if tensor.is_quantized else "sparse"
            raise wrong("weights", "dense tensors", f"{path}, where {name} is {kind}")
    return dict(content)


def class_names(path: Path) -> tuple[str, ...] | None:
    """Read the names of the classes, in order, that a safetensors file may tell; None where it does not."""
    if not path.is_file():
        raise wrong("weights", "a file", str(path))
    if not _is_safetensors(_start_of(path)):
        return None
    try:
        with safetensors.safe_open(path, "pt") as file:
            names = json.loads((file.metadata() or {}).get(CLASSES, "null"))
    except (OSError, safetensors.SafetensorError, json.JSONDecodeError, RecursionError):
        return None  # somebody else's key, or a damaged file: reading the tensors tells
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)


def class_metadata(classes: Sequence[str]) -> dict[str, str]:
    """Write the names of classes as the metadata of a safetensors file, see `class_names`."""
    return {CLASSES: json.dumps(list(classes))}


def without_wrapper(tensors: dict[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Take off the prefixes that wrappers put before every name, unless the model's own names begin with them."""
    bare = tensors
    while bare and not any(name in names for name in bare):
        prefix = next(iter(bare)).partition(".")[0] + "."
        if not all(name.startswith(prefix) and name != prefix for name in bare):
            return _inside(tensors, names)
        bare = {name.removeprefix(prefix): tensor for name, tensor in bare.items()}
    return bare


def _inside(tensors: dict[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Pick the model out of a training module, which also keeps a loss with weights; unchanged if there is none."""
    needed = {name for name in names if not name.endswith("num_batches_tracked")}
    prefixes = dict.fromkeys(name.partition(".")[0] + "." for name in tensors)
    for prefix in prefixes:
        inner = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        others = [name for name in tensors if not name.startswith(prefix)]
        if needed and needed <= inner.keys() and all(name.partition(".")[0] in _LOSSES for name in others):
            return inner
    return tensors  # whose names are none of the model's


def load_weights(path: Path, model: nn.Module, *, new_head: str | None = None) -> None:
    """Read weights into a model; a damaged file, or one for another model, is an error with the first mismatches.

    With `new_head`, the name of a layer, that layer keeps the model's weights if those in the file have another shape.
    """
    own = model.state_dict()
    tensors = without_wrapper(read_weights(path), own)
    if new_head is not None:
        names = [f"{new_head}.{kind}" for kind in ("weight", "bias")]
        if any(name in tensors and name in own and tensors[name].shape != own[name].shape for name in names):
            tensors = tensors | {name: own[name] for name in names if name in own}
    found = mismatches(tensors, own)
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        strange = [name for name in tensors if name not in own]
        has = f"; it has {', '.join(strange[:_SHOWN])}" if strange and len(found) > _SHOWN else ""
        raise wrong("weights", "those of the configured model", f"{path}: {'; '.join(found[:_SHOWN])}{more}{has}")
    model.load_state_dict(tensors)


def mismatches(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """List in what a state dict differs from that of a model."""
    lines = []
    for name, tensor in own.items():
        if name not in tensors:
            if not name.endswith("num_batches_tracked"):  # old files do not have it, and nothing depends on it
                lines.append(f"{name} is missing")
        elif tensors[name].shape != tensor.shape:
            lines.append(f"{name} is {list(tensors[name].shape)}, the model's is {list(tensor.shape)}")
        elif tensors[name].is_floating_point() != tensor.is_floating_point():
            lines.append(f"{name} is {tensors[name].dtype}, the model's is {tensor.dtype}")
    return lines + [f"{name} is not in the model" for name in tensors if name not in own]


def _read(path: Path) -> Any:
    start = _start_of(path)
    try:
        if _is_safetensors(start):
            return safetensors.torch.load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both raise several types for a damaged file
        expected = "a readable safetensors file, or tensors alone saved by torch"
        raise wrong("weights", expected, f"{path}, {_damage(start, error)}") from None


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(16)


def _is_safetensors(start: bytes) -> bool:
    return start[8:9] == b"{"  # the length of a JSON header, then the header


def _damage(start: bytes, error: Exception) -> str:
    """Say what is wrong with a file, without torch's advice to let it run code."""
    if not start:
        return "which is empty"
    if start.startswith(b"version https://"):
        return "which is a pointer of Git LFS to the file: git lfs pull fetches it"
    if "weights_only" in str(error):
        kind = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f", a {kind[1]}" if kind else ""
        return f"which holds more than tensors{what} (torch.save its state_dict alone)"
    return f"which neither can read ({type(error).__name__})"


def _kind(content: object) -> str:
    if isinstance(content, Mapping):
        return f"a dictionary with {', '.join(map(str, list(content)[:5])) or 'nothing'}"
    return f"a {type(content).__name__}"
