"""Names that other packages add: registered by a plugin that was imported, or found as an entry point when asked for.

Importing a plugin executes it; see SECURITY.md. Never imports torch.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from shiftcal._errors import ParameterError, did_you_mean, reason_of, wrong
from shiftcal._imports import import_object

_NAME = re.compile(r"\w[\w.+-]*")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_LOADED: set[str] = set()


T = TypeVar("T")


class Registry(Generic[T]):
    """What other packages add to a table of this one, by name.

    Args:
        kind: What it holds, in one word: the parameter that errors name.
        group: The group of entry points in which packages announce theirs.
        builtin: Lists the names of this package, which no other may take.
        what: What stands after the colon of "package.module:…", in words.
        of: The class that values are of; by default they are functions, which this calls.
    """

    def __init__(
        self, kind: str, group: str, builtin: Callable[[], Collection[str]], what: str, of: type[T] | None = None
    ) -> None:
        self.kind, self.group = kind, group
        self._builtin, self._what, self._of = builtin, what, of
        self._added: dict[str, T] = {}

    def register(self, name: str, value: object) -> None:
        """Add a name; those of this package, and those that something else has, are refused."""
        if not _NAME.fullmatch(name):
            raise wrong(self.kind, "named by letters, digits and any of _ . + -", repr(name))
        if name in self._builtin():
            raise wrong(self.kind, "a name that is not one of shiftcal's", repr(name))
        checked = self._check(name, value)
        if name in self._added and not _are_same(self._added[name], checked):
            raise wrong(self.kind, "a name that no other plugin has registered", repr(name))
        self._added[name] = checked

    def find(self, name: str) -> T:
        """Return what "package.module:…" is, what was registered under a name, or else what its entry point loads."""
        if ":" in name:
            return self._check(name, import_object(self.kind, name, self._what))
        if name in self._added:
            return self._added[name]
        if (point := self.entry_point(name)) is not None:
            return self._check(name, _loaded(self.kind, point))
        known = self.names()
        hint = did_you_mean(name, known)
        own = " One of your own is registered by a plugin (--plugin MODULE, or the key `plugins`)."
        raise ParameterError(self.kind, "one of " + ", ".join(sorted(known)), repr(name), hint + own)

    def _check(self, name: str, value: Any) -> T:
        """Raise unless a value is of the right kind."""
        if not (callable(value) if self._of is None else isinstance(value, self._of)):
            raise wrong(self.kind, f"package.module:{self._what}", f"{name}, a {type(value).__name__}")
        found: T = value
        return found

    def names(self) -> list[str]:
        """List all names: those of this package, registered ones, and those of entry points, which are not loaded."""
        announced = {point.name for point in entry_points(group=self.group)}
        return list(dict.fromkeys([*self._builtin(), *self._added, *sorted(announced)]))

    def is_known(self, name: str) -> bool:
        """Tell whether a name can be looked up without importing anything."""
        return name in self._builtin() or name in self._added

    def entry_point(self, name: str) -> EntryPoint | None:
        """Return the entry point of a name; None for those that are known without one."""
        if self.is_known(name):
            return None
        return next(iter(entry_points(group=self.group, name=name)), None)


def load_plugins(modules: Iterable[str]) -> None:
    """Import modules that register what they add. The current directory is the last place on the path."""
    for module in modules:
        if module in _LOADED:
            continue
        if not _MODULE.fullmatch(module):
            raise wrong("plugins", "names of modules, such as my_methods or package.module", repr(module))
        if not {"", "."} & set(sys.path):
            sys.path.append("")
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever the module does when it is imported
            raise wrong("plugins", "modules that can be imported", f"{module} ({reason_of(error)})") from None
        _LOADED.add(module)


def is_loaded(module: str) -> bool:
    """Tell whether a plugin was imported in this process."""
    return module in _LOADED


def _loaded(kind: str, point: EntryPoint) -> object:
    try:
        found: object = point.load()
    except Exception as error:  # whatever the package does when it is imported
        package = point.dist.name if point.dist is not None else "an unknown package"
        named = f"{point.name}, {point.value} of {package} ({reason_of(error)})"
        raise wrong(kind, "one whose entry point can be imported", named) from None
    return found


def _are_same(one: object, other: object) -> bool:
    """Tell whether two values are the same, or one function of a module that was imported twice."""
    places = [(getattr(v, "__module__", None), getattr(v, "__qualname__", None)) for v in (one, other)]
    return one == other or (None not in places[0] and places[0] == places[1])
