"""The error for an extra that is not installed."""

from __future__ import annotations

from shiftcal._errors import reason_of


def missing(extra: str, error: BaseException) -> ImportError:
    """Build the error for a package that cannot be imported: it names the extra (the caller raises it)."""
    install = f"pip install 'shiftcal[{extra}]'"
    return ImportError(f"shiftcal.integrations.{extra} needs the extra `{extra}`: {install} ({reason_of(error)}).")
