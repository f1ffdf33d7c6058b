"""NumPy arrays and lists where tensors are expected."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch

from shiftcal._errors import wrong

R = TypeVar("R")
_ARRAYS = (np.ndarray, list)  # torch.compile knows no unions


def takes_arrays(function: Callable[..., R]) -> Callable[..., R]:
    """Let a function of tensors take NumPy arrays and lists of numbers too; lists become float64 or int64."""

    @wraps(function)
    def converting(*args: Any, **kwargs: Any) -> R:
        if any(isinstance(value, _ARRAYS) for value in (*args, *kwargs.values())):
            args = tuple(map(_tensor, args))
            kwargs = {name: _tensor(value) for name, value in kwargs.items()}
        return function(*args, **kwargs)

    return converting


def _tensor(value: Any) -> Any:
    if not isinstance(value, _ARRAYS):
        return value
    try:
        array = np.asarray(value)
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch knows few operations on these
            array = array.astype(np.int64)
        return torch.from_numpy(np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False)))
    except (TypeError, ValueError) as error:
        found = f"a {type(value).__name__} that is no array ({error})"
        raise wrong("array", "numbers, in rows of one length", found) from None
