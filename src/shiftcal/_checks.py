"""One error format for every function: what was expected, what was found."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def wrong(name: str, should: str, found: object) -> ValueError:
    """Build the error "Parameter `x` should be …. Found `x = …`." (the caller raises it)."""
    return ValueError(f"Parameter `{name}` should be {should}. Found `{name} = {found}`.")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise unless a value is an integer of some least size."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise wrong(name, f"an integer of at least {least}", value)


def unknown(name: str, value: str, known: Iterable[str]) -> ValueError:
    """Build the error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    return ValueError(f"{wrong(name, 'one of ' + ', '.join(names), repr(value))}{did_you_mean(value, names)}")


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """Write a hint to the nearest name that exists, to be put behind an error; nothing if none is near."""
    by_lower_case = {name.lower(): name for name in sorted(known)}
    nearest = difflib.get_close_matches(value.lower(), by_lower_case, n=1, cutoff=0.5)
    return f" Did you mean '{by_lower_case[nearest[0]]}'?" if nearest else ""
