"""Docstrings say "Example:", which the site's parser knows as "Examples:"."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Name the sections with examples as the parser of docstrings does."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
