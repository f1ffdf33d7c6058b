"""Text that a user, or a file from elsewhere, supplied, escaped for the medium in which it is shown."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence


def plain(text: object) -> str:
    r"""Return one line without control characters, which could move a terminal's cursor or break a table's row.

    Example:
        >>> plain("a\nb\x1b[2J")
        'a b [2J'
    """
    return " ".join(
        "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") else c for c in str(text)).split()
    )


def for_terminal(text: object) -> str:
    r"""Escape text for rich, whose markup is in square brackets.

    Example:
        >>> for_terminal("[/]")
        '\\[/]'
    """
    return re.sub(r"(\\*)\[", r"\1\1\\[", plain(text))


def for_markdown(text: object) -> str:
    r"""Escape text for a cell of a Markdown table; underscores inside words stay as they are.

    Example:
        >>> for_markdown("a|b *c* gaussian_noise")
        'a\\|b \\*c\\* gaussian_noise'
    """
    escaped = re.sub(r"([\\`*|<>\[\]])", r"\\\1", plain(text))
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", escaped)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write the lines of a table of texts that are Markdown already: the first column to the left, others to the right.

    Example:
        >>> markdown_table(["method", "ECE"], [["ce", "3.1"]])
        ['| method | ECE |', '|---|---:|', '| ce | 3.1 |']
    """
    rule = "|---|" + "---:|" * (len(heads) - 1)
    return [f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def for_latex(text: object) -> str:
    r"""Escape text for LaTeX, whose special characters could start a command.

    Example:
        >>> for_latex("a_b 50 % \\input{x}")
        'a\\_b 50 \\% \\textbackslash{}input\\{x\\}'
    """
    escaped = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "−": "$-$",
    }
    escaped |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(escaped.get(character, character) for character in plain(text))


def for_figure(text: object) -> str:
    r"""Escape text for matplotlib, where dollars begin a formula.

    Example:
        >>> for_figure("$x$")
        '\\$x\\$'
    """
    return plain(text).replace("$", r"\$")
