"""What `audit`, `predict` and `export` open: a model of any kind, and how images become its input."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from shiftcal import models
from shiftcal._errors import DataError, reason_of, wrong
from shiftcal._io import sha256_of
from shiftcal.auditing.predictors import OnnxModel, Outputs, exported_program
from shiftcal.data.dataset import Dataset
from shiftcal.experiments.config import Config, config_of_run
from shiftcal.experiments.finished import check_config_of, check_finished, check_weights
from shiftcal.experiments.origin import classes_of
from shiftcal.experiments.setup import load_dataset, preprocessing_of, reading_of
from shiftcal.models.pretrained import build_timm, timm_name
from shiftcal.records import RECORD, WEIGHTS, read_record

CHECKPOINTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")


@dataclass(frozen=True)
class Opened:
    """A model, and what is known of it.

    Attributes:
        model: Takes preprocessed images.
        name: Its name.
        kind: "run", "checkpoint", "timm", "onnx" or "exported program".
        sha256: Of its file.
        classes: The names of its outputs, if they are known.
        outputs: What it gives, if it says so itself.
        known: What is known of its preprocessing: `mean`, `std`, `size`, `resize`, `interpolation`, `input_size`.
        data: What loads the data that it was trained with, if that is known.
        config: The run's config, if it is one.
        calibrator: The kind of calibrator that is part of it, if one is.
    """

    model: nn.Module
    name: str
    kind: str
    sha256: str | None = None
    classes: tuple[str, ...] | None = None
    outputs: Outputs | None = None
    known: dict[str, Any] = field(default_factory=dict)
    data: Callable[[], Dataset] | None = None
    config: Config | None = None
    calibrator: str | None = None


def open_model(
    name: str,
    *,
    network: str | None = None,
    weights: str | None = None,
    trust: bool = False,
    classes: int | None = None,
) -> Opened:
    """Open a model.

    Args:
        name: The directory of a run; a checkpoint, whose network is named by `network`; "timm/NAME"; a `.onnx` file; a
            `.pt2` file that torch.export wrote.
        network: The network of a checkpoint, see `models.build`. The current directory is on the path.
        weights: Where the weights of a timm model are; by default they are fetched.
        trust: Whether code that a run's config or a `.pt2` file names may run.
        classes: How many classes a checkpoint has, where its last layer does not tell.
    """
    path = Path(name)
    if path.is_dir():
        return _run(path, trust)
    if timm_name(name) is not None:
        return _timm(name, weights)
    if not path.is_file():
        expected = "a run's directory, a checkpoint, timm/NAME, an .onnx or a .pt2 file"
        raise DataError("MODEL", expected, f"{name}, which does not exist")
    if path.suffix == ".onnx":
        return _onnx(path)
    if path.suffix == ".pt2":
        return _program(path, trust)
    if path.suffix not in CHECKPOINTS:
        raise wrong("MODEL", f"a file that ends in {', '.join((*CHECKPOINTS, '.onnx', '.pt2'))}", name)
    return _checkpoint(path, network, classes)


def _run(path: Path, trust: bool) -> Opened:
    check_finished(path)
    record, config = read_record(path / RECORD), config_of_run(path, trust=trust)
    digest = check_weights(path, record)
    check_config_of(path, config, record)
    names = classes_of(path)
    if names is None:
        names = load_dataset(config).classes
    model = models.build(config.train.model, len(names))
    models.load_weights(path / WEIGHTS, model)
    stored = record.data.preprocessing if record.data is not None else {}
    if not stored:
        preprocess = preprocessing_of(config, load_dataset(config), model)
        stored = {"mean": preprocess.mean, "std": preprocess.std, "input_size": preprocess.input_size}
    known = {key: value for key, value in stored.items() if value is not None}
    if "size" in (reading := reading_of(config.data)):
        known |= reading
    label = f"{path.resolve().name} ({record.method})"
    return Opened(model, label, "run", digest, names, "logits", known, lambda: load_dataset(config), config)


def _timm(name: str, weights: str | None) -> Opened:
    model = build_timm(name, None, weights or "pretrained")
    config: dict[str, Any] = dict(getattr(model, "pretrained_cfg", None) or {})
    size = int(config["input_size"][-1])
    crop = float(config.get("crop_pct") or 0.875)
    known = {
        "mean": tuple(config["mean"]),
        "std": tuple(config["std"]),
        "size": size,
        "resize": int(size / crop),
        "interpolation": config.get("interpolation") or "bilinear",
    }
    digest = sha256_of(Path(weights)) if weights and Path(weights).is_file() else None
    return Opened(model, name, "timm", digest, _imagenet_names(model), "logits", known)


def _imagenet_names(model: Any) -> tuple[str, ...] | None:
    """Return WordNet's ids, which name ImageNet's folders, of a model of its thousand classes."""
    if getattr(model, "num_classes", None) != 1000:
        return None
    import timm.data

    info: Any = timm.data.ImageNetInfo("imagenet-1k")  # type: ignore[attr-defined]
    return tuple(info.label_names())


def _onnx(path: Path) -> Opened:
    model = OnnxModel(path)
    known = _preprocessing_in(model.metadata)
    if model.size is not None and "input_size" not in known:
        known.setdefault("size", model.size)
    return _described(model, model.metadata, path, "onnx", known)


def _program(path: Path, trust: bool) -> Opened:
    if not trust:
        raise wrong("MODEL", "a trusted one (--trust): loading a .pt2 file may run code that is in it", str(path))
    model, metadata = exported_program(path)
    return _described(model, metadata, path, "exported program", _preprocessing_in(metadata))


def _preprocessing_in(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Read what an export says of its preprocessing; what it cannot mean is left out."""
    stored = metadata.get("preprocessing")

    def is_meant(key: str, value: Any) -> bool:
        if key in ("mean", "std"):
            return isinstance(value, list) and len(value) == 3 and all(isinstance(v, int | float) for v in value)
        if key in ("size", "resize", "input_size"):
            return isinstance(value, int) and value > 0
        return key in ("interpolation", "fit") and isinstance(value, str)

    return {key: value for key, value in stored.items() if is_meant(key, value)} if isinstance(stored, dict) else {}


def _described(model: nn.Module, metadata: dict[str, Any], path: Path, kind: str, known: dict[str, Any]) -> Opened:
    names, outputs, calibrator = (metadata.get(key) for key in ("classes", "outputs", "calibrator"))
    return Opened(
        model,
        path.name,
        kind,
        _digest(path),
        tuple(map(str, names)) if isinstance(names, list) else None,
        outputs if outputs in ("logits", "probabilities") else None,
        known,
        calibrator=calibrator if isinstance(calibrator, str) else None,
    )


def _digest(path: Path) -> str:
    """Compute the SHA-256 of a file and, of an ONNX model, of the weights beside it."""
    beside = path.with_name(f"{path.name}.data")
    if not beside.is_file():
        return sha256_of(path)
    return hashlib.sha256(f"{sha256_of(path)} {sha256_of(beside)}".encode()).hexdigest()


def _checkpoint(path: Path, network: str | None, classes: int | None) -> Opened:
    if network is None:
        expected = "given: --model NAME, timm/NAME or package.module:factory, whose weights the checkpoint has"
        raise wrong("model", expected, "nothing")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a factory in the current directory
    names = models.class_names(path)
    count = len(names) if names else classes or _rows(path, network)
    if timm_name(network) is not None:
        opened = _timm(network, str(path))
        return Opened(opened.model, path.name, "checkpoint", sha256_of(path), names, None, opened.known)
    model = _built(network, count)
    models.load_weights(path, model)
    return Opened(model, path.name, "checkpoint", sha256_of(path), names)


def _built(network: str, classes: int) -> nn.Module:
    """Build a network; what a user's factory raises is told in one line."""
    try:
        return models.build(network, classes)
    except ValueError:
        raise
    except Exception as error:
        raise DataError("model", f"a factory that builds a network of {classes} classes", reason_of(error)) from None


def _rows(path: Path, network: str) -> int:
    """Find how many classes a checkpoint's last layer has."""
    tensors = models.read_weights(path)
    built = _built(network, 2)
    try:
        head = models.classifier_of(built)[0]
    except ValueError:
        expected = "one that ends in a linear layer, or --classes FILE given, which tells how many outputs it has"
        raise wrong("model", expected, network) from None
    found = [t.shape[0] for name, t in tensors.items() if name.endswith(f"{head}.weight") or name == f"{head}.weight"]
    if not found:
        raise DataError(
            "weights", f"those of {network}, with {head}.weight", f"{path} without it (--classes FILE helps)"
        )
    return int(found[-1])
