"""Intervals of paired differences (Student's t)."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """The mean of differences and half the width of its 95 % interval, which one seed alone does not give."""

    mean: float
    half_width: float | None

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def difference(values: list[float], against: list[float]) -> Difference:
    """Compare values pair by pair.

    Example:
        >>> difference([3.0, 5.0, 4.0], [1.0, 2.0, 3.0])  # doctest: +ELLIPSIS
        Difference(mean=2.0, half_width=2.4841...)
    """
    found = [value - other for value, other in zip(values, against, strict=True)]
    if len(found) == 1:
        return Difference(found[0], None)
    error = statistics.stdev(found) / math.sqrt(len(found))
    return Difference(statistics.mean(found), student_t(len(found) - 1) * error)


def student_t(degrees: int, level: float = 0.95) -> float:
    """Return the t that a share `level` of Student's distribution lies within, for whole degrees of freedom.

    Example:
        >>> round(student_t(2), 3)
        4.303
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, degrees) < level else (low, angle)
    return math.tan(low) * math.sqrt(degrees)


def _within(angle: float, degrees: int) -> float:
    """Return P(|T| < √ν·tan θ), a finite sum for whole ν (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    even = degrees % 2 == 0
    term = 1.0 if even else math.cos(angle)
    total = term if even or degrees > 1 else 0.0
    for k in range(1 if even else 2, degrees - 2, 2):
        term *= k / (k + 1) * math.cos(angle) ** 2
        total += term
    return math.sin(angle) * total if even else 2 / math.pi * (angle + math.sin(angle) * total)
