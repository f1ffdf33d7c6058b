"""Checkpoints: one directory per epoch, renamed into place when whole."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from shiftcal._checks import wrong
from shiftcal.models import load_weights
from shiftcal.records import WEIGHTS, write_atomically, write_json
from shiftcal.records import read_json as _read_json

_KEEP = 2
_STATE, _HISTORY = "state.pt", "history.json"


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a model's weights as safetensors; those that two layers share are written for each."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    write_atomically(path, safetensors.torch.save(tensors))


def save(directory: Path, epoch: int, model: nn.Module, state: dict[str, Any], history: list[dict[str, Any]]) -> Path:
    """Write the checkpoint after an epoch (counted from 1) and remove all but the last two."""
    final = directory / f"epoch-{epoch:04d}"
    temporary = directory / f".epoch-{epoch:04d}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        save_weights(temporary / WEIGHTS, model)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomically(temporary / _STATE, buffer.getvalue())
        write_json(temporary / _HISTORY, history)
        temporary.rename(final)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in checkpoints(directory)[:-_KEEP]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(directory: Path) -> list[Path]:
    """List the checkpoints in a directory, oldest first."""
    return sorted(directory.glob("epoch-*"))


def load(checkpoint: Path, model: nn.Module) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    """Read a checkpoint: weights into the model; returns the epochs done, the state and the history."""
    load_weights(checkpoint / WEIGHTS, model)
    path = checkpoint / _STATE
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises several types for a damaged file
        raise wrong(
            "checkpoint", "whole (remove a damaged one to go on from the one before)", f"{path}: {error}"
        ) from None
    return int(checkpoint.name.removeprefix("epoch-")), state, _read_json(checkpoint / _HISTORY)
