"""Files are written whole or not at all, and JSON has no NaN."""

import errno
import os
from pathlib import Path

import pytest

from shiftcal import _io


def test_writing_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    _io.write_json(path, {"a": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        _io.write_json(path, {"a": 2})
    assert _io.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    _io.write_json(path, {"a": 1})
    old = path.stat().st_ino

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _io.write_json(path, {"a": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]
    _io.write_json(path, {"a": 3})
    assert path.stat().st_ino != old, "replaced by a new file, not written over"


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float"):
        _io.write_json(tmp_path / "x.json", {"a": float("nan")})
    (tmp_path / "x.json").write_text('{"a": 1')
    with pytest.raises(ValueError, match=r"`path` should be a whole JSON file. .*x.json"):
        _io.read_json(tmp_path / "x.json")


def test_flat_joins_keys_of_every_depth() -> None:
    tree = {"a": {"b": {"c": 1, "d": (2, 3)}, "e": {}}, "f": None}
    assert _io.flat(tree) == {"a.b.c": 1, "a.b.d": (2, 3), "f": None}
    assert _io.flat(tree, "/") == {"a/b/c": 1, "a/b/d": (2, 3), "f": None}


def test_the_first_difference_is_named_with_both_values() -> None:
    mine = {"a": 1, "b": {"c": {"d": [15, 18]}, "e": ()}}
    assert _io.first_difference(mine, mine) is None
    assert _io.first_difference(mine, {"a": 1, "b": {"c": {"d": (15, 18)}}}) is None, "what is empty is not there"
    other = {"a": 2, "b": {"c": {"d": [18, 15]}}}
    assert _io.first_difference(mine, other) == "a = 2 instead of 1"
    assert _io.first_difference(mine, other, ignored=("a",)) == "b.c.d = [18, 15] instead of [15, 18]"
    assert _io.first_difference(mine, other, ignored=("a", "b.c.d")) is None
    assert _io.first_difference(mine, {"a": 1}) is not None
    assert _io.first_difference({"a": 0}, {}) == "a = None instead of 0"
    assert _io.first_difference({"a": []}, {"a": ["all"]}) == "a = ['all'] instead of []", "as it was given"
