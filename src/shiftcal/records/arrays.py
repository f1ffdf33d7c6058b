"""Small arrays beside records: what `shiftcal analyse` measures and `shiftcal figures` draws. Never imports torch."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shiftcal._errors import DataError, reason_of, wrong
from shiftcal._io import write_atomically

ARRAYS_SCHEMA = 1
KINDS = ("gradcam", "features", "noise", "strips")
_LABELS, _MOST = "labels", 256 * 2**20  # bytes, unpacked
_ALLOWED = "buif"  # bool, unsigned, integer, floating point


@dataclass(frozen=True)
class Arrays:
    """What one kind of analysis measured.

    Attributes:
        kind: A name in `KINDS`.
        arrays: The numbers, by name.
        labels: What they belong to, as plain data: runs, methods, classes and the like.
    """

    kind: str
    arrays: Mapping[str, NDArray[Any]]
    labels: Mapping[str, Any]

    def array(self, name: str, *shape: int | None) -> NDArray[Any]:
        """Return an array, which has to have this shape; None stands for any length."""
        found = self.arrays.get(name)
        expected = f"{self.kind} with an array `{name}` of shape {_written(shape)}"
        if found is None:
            raise DataError("arrays", expected, f"one with {', '.join(sorted(self.arrays)) or 'none'}")
        if len(found.shape) != len(shape) or any(w not in (None, h) for w, h in zip(shape, found.shape, strict=True)):
            raise DataError("arrays", expected, f"`{name}` of shape {list(found.shape)}")
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            raise DataError("arrays", f"{self.kind} with finite numbers in `{name}`", "some that are not")
        return found

    def check_few(self, name: str, count: int, most: int = 64) -> None:
        """Raise unless something comes once at least, and not so often that no figure could show it."""
        if not 1 <= count <= most:
            raise DataError("arrays", f"{self.kind} with 1 to {most} {name}", count)

    def strings(self, name: str, count: int | None = None) -> list[str]:
        """Return a list of names in the labels, of a length if one is given."""
        found = self.labels.get(name)
        of = "" if count is None else f" {count}"
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise DataError("arrays", f"{self.kind} with a list of{of} names `{name}` in its labels", repr(found)[:80])
        if count is not None and len(found) != count:
            raise DataError("arrays", f"{self.kind} with a list of{of} names `{name}` in its labels", len(found))
        return found

    def number(self, name: str) -> float:
        """Return a number in the labels."""
        found = self.labels.get(name)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise DataError("arrays", f"{self.kind} with a number `{name}` in its labels", repr(found)[:80])
        return float(found)


def _written(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def write_arrays(path: Path, found: Arrays) -> None:
    """Write arrays as .npz, their labels in it as JSON text; what cannot be read without pickling is an error."""
    if found.kind not in KINDS:
        raise wrong("kind", f"one of {', '.join(KINDS)}", found.kind)
    if bad := [name for name, array in found.arrays.items() if array.dtype.kind not in _ALLOWED or name == _LABELS]:
        raise wrong("arrays", "numbers, none of them named labels", bad[0])
    tree = {"schema": ARRAYS_SCHEMA, "kind": found.kind, **found.labels}
    text = np.frombuffer(json.dumps(tree, allow_nan=False).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{_LABELS: text}, **dict(found.arrays))  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def read_arrays(path: Path, kind: str) -> Arrays:
    """Read arrays of a kind; a damaged or forged file is an error in one line, whatever its header claims."""
    expected = f"what `shiftcal analyse {kind}` wrote"
    if not path.is_file():
        raise DataError("arrays", expected, str(path))
    try:
        with zipfile.ZipFile(path) as archive:
            _check_sizes(archive)
            arrays = {info.filename.removesuffix(".npy"): _read(archive, info) for info in archive.infolist()}
        labels = json.loads(arrays.pop(_LABELS).tobytes())
        if not isinstance(labels, dict) or labels.get("schema") != ARRAYS_SCHEMA or labels.get("kind") != kind:
            raise ValueError("its labels are not those of " + kind)  # noqa: TRY301
    except DataError:
        raise
    except Exception as error:  # a forged file may raise almost anything
        raise DataError("arrays", expected, f"{path}: {reason_of(error)}") from None
    return Arrays(kind, arrays, labels)


def _check_sizes(archive: zipfile.ZipFile) -> None:
    total = sum(info.file_size for info in archive.infolist())
    if total > _MOST:
        raise ValueError(f"it unpacks to {total} bytes, more than {_MOST}")


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array, after its header was compared with the bytes that are there."""
    data = archive.read(info)
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read_header:
        raise ValueError(f"{info.filename} has an unknown version {version}")
    shape, _, dtype = read_header[version](file)
    if dtype.kind not in _ALLOWED:
        raise ValueError(f"{info.filename} holds {dtype}, no numbers")
    if math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"{info.filename} is said to be {list(shape)}, which its {len(data)} bytes are not")
    return np.load(io.BytesIO(data), allow_pickle=False)  # type: ignore[no-any-return]
