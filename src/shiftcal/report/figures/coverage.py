"""Risk–coverage curves: the error rate of the most confident share of the images, clean and under shift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from shiftcal._errors import wrong
from shiftcal.records import Cell, Histogram, RunRecord
from shiftcal.report.figures.canvas import PARTS, blank, colours_of, legend_below
from shiftcal.report.figures.compared import methods_of
from shiftcal.report.text import for_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RiskCurve:
    """One method's error rate among its most confident predictions.

    Attributes:
        method: Whose.
        part: "clean" or "shifted" (all shifted test sets together).
        coverage: The share of the images that is kept, rising; one point for each step of confidence in use.
        risk: The error rate among them.
    """

    method: str
    part: str
    coverage: tuple[float, ...]
    risk: tuple[float, ...]

    @property
    def area(self) -> float:
        """The area under the curve by the trapezoid rule, from the first point held constant down to 0."""
        pairs = list(zip(self.coverage, self.risk, strict=True))
        total = pairs[0][0] * pairs[0][1]
        for (c0, r0), (c1, r1) in pairwise(pairs):
            total += (c1 - c0) * (r0 + r1) / 2
        return total


def coverage_data(records: Sequence[RunRecord]) -> list[RiskCurve]:
    """Add up the histograms of each method's seeds, and of all shifted sets, and walk down from the surest step."""
    found = []
    for part in PARTS:
        for method in methods_of(records):
            cells = [cell for r in records if r.method == method for cell in _cells(r, part)]
            if cells:
                histograms = [cell.histogram for cell in cells if cell.histogram is not None]
                if len(histograms) < len(cells):
                    expected = "with histograms of confidence (`shiftcal eval` adds them to a run's record)"
                    raise wrong("records", expected, f"{method} without them")
                found.append(_curve(method, part, histograms))
    return found


def _cells(record: RunRecord, part: str) -> Sequence[Cell]:
    return (record.evaluation.clean,) if part == "clean" else record.evaluation.shifts


def _curve(method: str, part: str, histograms: Sequence[Histogram]) -> RiskCurve:
    steps = range(min(len(h.right) for h in histograms))
    right = [sum(h.right[k] for h in histograms) for k in steps]
    mistakes = [sum(h.wrong[k] for h in histograms) for k in steps]
    total, kept, lost = sum(right) + sum(mistakes), 0, 0
    coverage, risk = [], []
    for k in reversed(steps):
        if right[k] + mistakes[k]:
            kept, lost = kept + right[k] + mistakes[k], lost + mistakes[k]
            coverage.append(kept / total)
            risk.append(lost / kept)
    return RiskCurve(method, part, tuple(coverage), tuple(risk))


def draw_coverage(curves: Sequence[RiskCurve]) -> Figure:
    """Draw an axis for each part; the legend tells each method's line."""
    parts, methods = (list(dict.fromkeys(getattr(c, key) for c in curves)) for key in ("part", "method"))
    figure, colours = blank(4.6 * len(parts), 4.1), colours_of(methods)
    axes = figure.subplots(1, len(parts), squeeze=False)[0]
    for axis, part in zip(axes, parts, strict=True):
        for curve in (c for c in curves if c.part == part):
            x, y = ([100 * value for value in values] for values in (curve.coverage, curve.risk))
            axis.plot(x, y, color=colours[curve.method], label=for_figure(curve.method), linewidth=1.5)
        axis.set(title=PARTS[part], xlabel="coverage, %", xlim=(0, 100), ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("errors among the covered, %")
    legend_below(figure, axes[0], columns=6)
    return figure
