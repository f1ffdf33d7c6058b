"""What a name such as "package.module:factory" stands for."""

from __future__ import annotations

import importlib
import re

from shiftcal._errors import reason_of, wrong

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def import_object(parameter: str, path: str, what: str) -> object:
    """Import what a path "package.module:name" names. This executes that module; see SECURITY.md."""
    expected = f"package.module:{what} that can be imported"
    if not _PATH.fullmatch(path):
        raise wrong(parameter, expected, repr(path))
    module, _, attribute = path.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module does when it is imported
        raise wrong(parameter, expected, f"{path} ({reason_of(error)})") from None
    return found
