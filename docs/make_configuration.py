"""Write docs/configuration.md, the reference of all keys, from the models that define them.

python docs/make_configuration.py [--check]
"""

import sys
import types
import typing
from pathlib import Path

from shiftcal._sections import Section
from shiftcal.experiments.config import Config

PATH = Path(__file__).with_name("configuration.md")


def kind_of(annotation: object) -> str:
    """Write a type as people read it."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " or ".join(kind_of(one) for one in arguments if one is not type(None))
    if typing.get_origin(annotation) is typing.Annotated:
        return kind_of(arguments[0])
    if typing.get_origin(annotation) is tuple:
        return f"list of {kind_of(arguments[0])}"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "`true`, `false`"}[annotation.__name__]


def value_of(default: object) -> str:
    if default is None:
        return "not set"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`[{', '.join(map(str, default))}]`"
    return f"`{default:.6g}`" if isinstance(default, float) else f"`{default}`"


def rows(kind: type[Section], prefix: str) -> list[str]:
    lines = ["| key | value | default | |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, Section)):
            text = (field.description or "").replace("|", "\\|")
            lines.append(f"| `{prefix}{name}` | {kind_of(field.annotation)} | {value_of(field.default)} | {text} |")
    return lines


def reference() -> str:
    parts = [
        "# Every key of a recipe",
        "Made from the code by `python docs/make_configuration.py`. A key is set in a recipe's section "
        "or with `--set KEY=VALUE`; `shiftcal recipes show NAME` prints what a recipe resolves to.",
        "\n".join(rows(Config, "")),
    ]
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            title = f"## [{name}]\n\n{(field.annotation.__doc__ or '').strip()}"
            parts += [title, "\n".join(rows(field.annotation, f"{name}."))]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PATH.read_text(encoding="utf-8") == reference() else "docs/configuration.md is out of date")
    PATH.write_text(reference(), encoding="utf-8")
