"""Recipes: TOML files by name or path; one may extend another and say only what differs."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from shiftcal._errors import unknown, wrong

_BASES = "bases"
EXTENDS = "extends"


def recipe_names() -> list[str]:
    """List the recipes that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in files("shiftcal.recipes").iterdir() if p.name.endswith(".toml"))


def read_recipe(recipe: str) -> dict[str, Any]:
    """Read a recipe by name, or by the path of a TOML file, with what it extends filled in.

    `extends` names a base or another recipe of the package, or a file beside the recipe. What is extended has to stand
    on its own, but for a recipe of the package, which may have its base.
    """
    text, name, folder = _find(recipe)
    tree = _parse(text, recipe)
    if EXTENDS in tree:
        tree = _extended(tree, recipe, folder)
    tree.setdefault("recipe", name)
    return tree


def recipe_text(name: str) -> str:
    """Return the text of a recipe of the package."""
    return _find(name)[0]


def headline(name: str) -> str:
    """Return the first line of a recipe's header, which says what it trains."""
    return recipe_text(name).splitlines()[0].lstrip("# ").strip()


def _find(recipe: str) -> tuple[str, str, Path | None]:
    """Return a recipe's text, its name, and the folder it lies in if it is a user's."""
    if recipe.endswith(".toml"):
        path = Path(recipe)
        if not path.is_file():
            raise wrong("recipe", f"a TOML file or one of {', '.join(recipe_names())}", repr(recipe))
        return _read(path), path.stem, path.parent
    if recipe not in recipe_names():
        raise unknown("recipe", recipe, recipe_names())
    return (files("shiftcal.recipes") / f"{recipe}.toml").read_text(encoding="utf-8"), recipe, None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise wrong("recipe", "a text file in UTF-8", repr(str(path))) from None


def _parse(text: str, recipe: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise wrong("recipe", "valid TOML", f"{recipe}: {error}") from None


def _extended(tree: dict[str, Any], recipe: str, folder: Path | None) -> dict[str, Any]:
    name = tree.pop(EXTENDS)
    if not isinstance(name, str):
        raise wrong(EXTENDS, "the name of a recipe or a TOML file", repr(name))
    base_file = files("shiftcal.recipes") / _BASES / f"{name}.toml"
    if base_file.is_file():
        base = _parse(base_file.read_text(encoding="utf-8"), name)
    elif name in recipe_names() and folder is not None:
        base = read_recipe(name)
        del base["recipe"]
    elif folder is not None and name.endswith(".toml"):
        path = folder / name
        if not path.is_file():
            raise wrong(EXTENDS, "a file beside the recipe", f"{name}, which is not in {folder}")
        base = _parse(_read(path), str(path))
    else:
        raise wrong(EXTENDS, "a base or a recipe of the package, or a TOML file beside the recipe", repr(name))
    if EXTENDS in base:
        raise wrong(EXTENDS, f"one that stands on its own, for {recipe}", f"{name}, which extends another")
    return _merged(base, tree)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Lay a recipe over its base, section by section."""
    both = {key: {**base[key], **own[key]} for key in base.keys() & own.keys() if _are_sections(base[key], own[key])}
    return {**base, **own, **both}


def _are_sections(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)
