"""Random damage to what was written: to the tree of a JSON file, and to bytes."""

import copy
import random
from typing import Any

VALUES: list[Any] = [
    *(None, True, 0, -1, 10**30, 1e-320, float("nan"), float("inf"), float("-inf"), 2.5, -0.5),
    *("", "[/]", "[bold", r"$\frac$", "a|b", "<script>", "\x1b[2J", "\udcff", "x" * 5000, "é\n\n", "nan"),
    *([], {}, [1], [[]], {"a": 1}, ["a"], [None] * 40),
]


def damaged_tree(tree: Any, rng: random.Random) -> Any:
    """Return a tree with one node removed, replaced, doubled or renamed."""
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    parent, key = rng.choice(places)
    kind = rng.choice(["replace", "replace", "replace", "remove", "double", "rename", "sign"])
    if kind == "remove":
        del parent[key]
    elif kind == "double" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif kind == "rename" and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
    elif kind == "sign" and isinstance(parent[key], int | float):
        parent[key] = -1000 * parent[key] - 1
    else:
        parent[key] = rng.choice(VALUES)
    return tree


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a flipped bit, a cut, a hole or a repetition."""
    kind, place = rng.choice(["flip", "cut", "zero", "repeat", "prepend"]), rng.randrange(len(data))
    if kind == "flip":
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if kind == "cut":
        return data[:place]
    if kind == "zero":
        return data[:place] + bytes(min(64, len(data) - place)) + data[place + 64 :]
    if kind == "repeat":
        return data[:place] + data[max(place - 100, 0) :]
    return rng.randbytes(9) + data
