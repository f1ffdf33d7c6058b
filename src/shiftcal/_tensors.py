"""What losses, metrics, calibrators and augmentations share about tensors: checks above all.

Those that read values wait for the device; inside `torch.compile`, where there are no values to read, they pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shiftcal._errors import wrong


def check_tensor(name: str, value: object) -> None:
    """Raise unless a value is a tensor at all."""
    if not isinstance(value, Tensor):
        raise wrong(name, "a torch.Tensor", f"a {type(value).__module__}.{type(value).__name__}")


def check_rows(name: str, rows: Tensor) -> None:
    """Raise unless rows are floating point, one per sample, one column per class."""
    check_tensor(name, rows)
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] < 2:
        raise wrong(name, "of shape [N, K] with N ≥ 1 and K ≥ 2", list(rows.shape))
    if not rows.is_floating_point():
        raise wrong(name, "floating point", rows.dtype)


def check_indices(targets: Tensor, size: int) -> None:
    """Raise unless targets are `size` integers."""
    check_tensor("targets", targets)
    if targets.is_floating_point() and targets.ndim == 2 and targets.shape[1] > 1:
        expected = "integer class indices (of mixed images: augment.mixup_loss, which takes both classes)"
        raise wrong("targets", expected, f"{targets.dtype} {list(targets.shape)}, shares of classes it seems")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise wrong("targets", "integer class indices", targets.dtype)
    if targets.shape != (size,):
        raise wrong("targets", f"of shape [{size}], one per sample", list(targets.shape))


def check_labelled(name: str, rows: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Raise unless rows are floating [N, K ≥ 2], targets N integers, and the mask, if there is one, N booleans.

    Returns the rows in float32 at least.
    """
    check_rows(name, rows)
    check_indices(targets, len(rows))
    if mask is not None and (mask.dtype != torch.bool or mask.shape != targets.shape):
        raise wrong("mask", f"{len(targets)} booleans, one per sample", f"{mask.dtype} {list(mask.shape)}")
    return at_least_float32(rows)


def check_finite(name: str, values: Tensor) -> None:
    """Raise if any value is NaN or infinite (reads values)."""
    if not torch.compiler.is_compiling() and not bool(values.isfinite().all()):
        raise wrong(name, "finite", "NaN or infinity")


def check_range(targets: Tensor, classes: int) -> None:
    """Raise unless targets are in 0..K−1 (reads values)."""
    if torch.compiler.is_compiling():
        return
    targets = targets.long()  # in a narrow type the number of classes might not fit
    if bool(((targets < 0) | (targets >= classes)).any()):
        raise wrong("targets", f"in 0..{classes - 1}", f"values in {int(targets.min())}..{int(targets.max())}")


def check_classes(rows: Tensor, targets: Tensor) -> None:
    """Raise unless targets are columns of rows, without waiting for a device: on a GPU the kernel's own check fails."""
    if not rows.is_cuda:
        check_range(targets, rows.shape[1])
    elif not torch.compiler.is_compiling():
        rows.detach().gather(1, targets.long().unsqueeze(1))


def at_least_float32(logits: Tensor) -> Tensor:
    """Widen half precision, in which probabilities near 1 cannot be told apart."""
    return logits if logits.dtype == torch.float64 else logits.float()
