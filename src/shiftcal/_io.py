"""Files written whole or not at all, and JSON without NaN. Never imports torch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shiftcal._errors import wrong

UNREADABLE = "unreadable.txt"  # the list of images that could not be read, in an output directory


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name beside the target, sync and rename: a kill leaves the old file or the new one."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside the target; what was written there takes its place, unless an error ends it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:  # Ctrl-C too
        temporary.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, content: object) -> None:
    """Write JSON atomically; NaN and infinity, which JSON does not have, are an error."""
    write_atomically(path, to_json(content))


def to_json(content: object) -> bytes:
    """Encode JSON, refusing NaN and infinity."""
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """Read JSON; a damaged file is an error that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise wrong("path", "a whole JSON file", f"{path}: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise wrong("path", "a JSON object", f"{path}, which holds a {type(content).__name__}")
    return content


def is_free(directory: Path) -> bool:
    """Tell whether a directory is new or empty, but for what a killed process left, or a list of unreadable images."""
    left = (path.name for path in directory.iterdir()) if directory.is_dir() else ()
    return all(name.endswith(".tmp") or name == UNREADABLE for name in left)


def flat(tree: Mapping[str, Any], separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Lay a tree of plain data out flat, its keys joined.

    Example:
        >>> flat({"a": {"b": 1}, "c": 2})
        {'a.b': 1, 'c': 2}
    """
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        found |= flat(value, separator, f"{name}{separator}") if isinstance(value, Mapping) else {name: value}
    return found


def first_difference(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "", ignored: Collection[str] = ()
) -> str | None:
    """Name the first key in which two trees of plain data differ, with both values; None if there is none.

    What is empty is as if it were not there: an earlier version may not have known the key.
    """
    for key in sorted(mine.keys() | theirs.keys()):
        if f"{prefix}{key}" in ignored:
            continue
        a, b = _plain(mine.get(key)), _plain(theirs.get(key))
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if inner := first_difference(a, b, f"{prefix}{key}.", ignored):
                return inner
        elif a != b:
            return f"{prefix}{key} = {_shown(theirs.get(key))} instead of {_shown(mine.get(key))}"
    return None


def _plain(value: Any) -> Any:
    return list(value) or None if isinstance(value, list | tuple) else value


def _shown(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value
