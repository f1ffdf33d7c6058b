"""What a file of a run may name without being trusted: this package's names, and what the user named before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from shiftcal._errors import wrong
from shiftcal._plugins import Registry, is_loaded


def check_trusted(tree: Mapping[str, Any], where: object, known: Collection[str] = ()) -> None:
    """Raise if what a file holds names something of another package that is not known: building it would import it.

    Plugins that were imported before, and what they registered, are known: the user named them.
    """
    for module in _plugins(tree):
        if module not in known and not is_loaded(module):
            expected = f"given (--plugin {module}), or the run trusted (--trust): {module} would be imported"
            raise wrong("plugins", expected, f"{where} with {module!r}")
    for key, name, added in _named(tree):
        if name in known:
            continue
        if ":" in name:
            expected = f"a name of this package, or the run trusted (--trust): {name} would be imported and called"
            raise wrong(key, expected, f"{where} with {name!r}")
        if (point := added.entry_point(name)) is not None:
            expected = f"a name of this package, or the run trusted (--trust): {point.value} would be imported"
            raise wrong(key, expected, f"{where} with {name!r}")


def _plugins(tree: Mapping[str, Any]) -> list[str]:
    found = tree.get("plugins")
    return [module for module in found if isinstance(module, str)] if isinstance(found, list | tuple) else []


def _named(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, Registry[Any]]]:
    """List the keys that name code, with the names and the tables that these are looked up in."""
    from shiftcal import data, methods, models  # these import torch, which a recipe alone does not need

    for section, key, added in (
        (None, "method", methods.ADDED),
        ("train", "model", models.ADDED),
        ("data", "name", data.ADDED),
    ):
        place = tree if section is None else tree.get(section)
        name = place.get(key) if isinstance(place, Mapping) else None
        if isinstance(name, str):
            yield (key if section is None else f"{section}.{key}"), name, added
