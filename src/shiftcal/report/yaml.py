"""YAML for the front matter of a card: block style, every text quoted, so that no text can be read as anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from shiftcal.report.text import plain

_UNPRINTABLE = re.compile("[^ -~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_yaml(tree: Mapping[str, Any] | Sequence[Any]) -> str:
    """Write plain data as YAML: mappings whose keys are words of ours, lists, texts, numbers.

    Example:
        >>> print(to_yaml({"tags": ["a: b"], "results": [{"value": 0.5, "split": "test"}]}), end="")
        tags:
        - "a: b"
        results:
        - value: 0.500000
          split: "test"
    """
    return "".join(line + "\n" for line in _lines(tree))


def _lines(tree: Any) -> list[str]:
    if isinstance(tree, Mapping):
        return [line for key, value in tree.items() for line in _entry(f"{key}:", value)]
    return [line for value in tree for line in _item(value)]


def _entry(start: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [start, *(f"  {line}" for line in _lines(value))]
    return [start, *_lines(value)] if _is_list(value) else [f"{start} {_scalar(value)}"]


def _item(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"- {_scalar(value)}"]
    first, *others = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in others)]


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6f}"
    # A JSON text is a YAML text, but for characters that YAML does not admit unescaped.
    return _UNPRINTABLE.sub(lambda c: f"\\u{ord(c.group()):04x}", json.dumps(plain(value), ensure_ascii=False))
