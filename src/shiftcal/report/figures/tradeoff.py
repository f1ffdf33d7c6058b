"""Accuracy against ECE, clean and under shift: a point for each method, and the frontier that no other is beyond."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from shiftcal.records import RunRecord
from shiftcal.report.figures.canvas import METRICS, PARTS, blank, colours_of
from shiftcal.report.table import SHIFTED, rows_of
from shiftcal.report.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


@dataclass(frozen=True)
class Point:
    """One method on clean or on shifted images.

    Attributes:
        method: Which.
        part: "clean" or "shifted" (the mean over the shifted test sets).
        accuracy: In %, one value for each seed.
        ece: The same.
    """

    method: str
    part: str
    accuracy: tuple[float, ...]
    ece: tuple[float, ...]

    @property
    def place(self) -> tuple[float, float]:
        """The means over seeds."""
        return statistics.fmean(self.accuracy), statistics.fmean(self.ece)

    @property
    def spread(self) -> tuple[float, float]:
        """The standard deviations over seeds, 0 for one seed."""
        accuracy, ece = (statistics.stdev(v) if len(v) > 1 else 0.0 for v in (self.accuracy, self.ece))
        return accuracy, ece


def tradeoff_data(records: Sequence[RunRecord]) -> list[Point]:
    """Collect the points, clean ones first, methods in the order of METHODS."""
    found = []
    for row in rows_of(list(records)):
        for part in dict.fromkeys(part for part, _ in row.cells if not part.startswith("Also")):
            accuracy, ece = (tuple(100 * value for value in row.cells[part, key]) for key in METRICS)
            found.append(Point(row.method, "shifted" if part == SHIFTED else "clean", accuracy, ece))
    return sorted(found, key=lambda point: list(PARTS).index(point.part))


def frontier(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other one dominates (as accurate and as well calibrated, and better in one)."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (-p.place[0], p.place[1])):
        if not best or point.place[1] < best[-1].place[1]:
            best.append(point)
    return best


def draw_tradeoff(points: Sequence[Point]) -> Figure:
    """Draw an axis for each part, names beside the points; down and to the right is better."""
    parts = list(dict.fromkeys(point.part for point in points))
    colours = colours_of(list(dict.fromkeys(point.method for point in points)))
    figure = blank(6.2 * len(parts), 4.6)
    axes = figure.subplots(1, len(parts), squeeze=False)[0]
    for axis, part in zip(axes, parts, strict=True):
        _draw_points(axis, [point for point in points if point.part == part], colours)
        axis.set(title=PARTS[part], xlabel=METRICS["accuracy"], ylim=(0, None))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(METRICS["ece"])
    figure.canvas.draw()  # where things are is known after this
    for axis, part in zip(axes, parts, strict=True):
        _name_points(axis, [point for point in points if point.part == part])
    return figure


def _draw_points(axis: Axes, points: Sequence[Point], colours: dict[str, str]) -> None:
    edge = [point.place for point in frontier(points)]
    axis.plot(*zip(*edge, strict=True), color="0.85", linewidth=5, solid_capstyle="round", zorder=1)
    for point in points:
        (x, y), (dx, dy), colour = point.place, point.spread, colours[point.method]
        axis.errorbar(x, y, yerr=dy, xerr=dx, fmt="o", markersize=6, color=colour, elinewidth=1, zorder=3)
    axis.margins(x=0.12, y=0.08)


# Where a name may stand beside its point, in points: the near places first.
_OFFSETS = [(dx * far, dy * far) for far in (6, 12, 20, 30) for dx, dy in product((1, -1, 0), (0, 1, -1)) if dx or dy]
_LEADER = {"arrowstyle": "-", "color": "0.5", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}


def _name_points(axis: Axes, points: Sequence[Point]) -> None:
    """Write each name where it hides least of what is there already; a line leads to it where that is not beside."""
    taken, frame = [box for point in points for box in _boxes_of(axis, point)], axis.get_window_extent()
    for point in points:
        text = for_figure(point.method)
        name = axis.annotate(text, point.place, (0, 0), textcoords="offset points", fontsize=8.5, zorder=4)
        costs = [_hidden(_moved(name, offset), taken, frame) + math.hypot(*offset) / 5 for offset in _OFFSETS]
        chosen = _OFFSETS[costs.index(min(costs))]
        taken.append(_moved(name, chosen))
        if max(map(abs, chosen)) > 6:
            axis.annotate("", point.place, chosen, textcoords="offset points", arrowprops=_LEADER, zorder=2)


def _boxes_of(axis: Axes, point: Point, size: float = 7) -> list[Bbox]:
    """Return the room that a point and its bars take, in pixels."""
    from matplotlib.transforms import Bbox

    (x, y), (dx, dy) = point.place, point.spread
    centre = axis.transData.transform((x, y))
    across, along = (abs(axis.transData.transform(end) - centre) for end in ((x + dx, y), (x, y + dy)))
    sizes = ((size, size), (across[0], 1.5), (1.5, along[1]))
    return [Bbox([centre - half, centre + half]) for half in sizes]


def _moved(name: Annotation, offset: tuple[float, float]) -> Bbox:
    """Move a name, and return the room that it takes."""
    dx, dy = offset
    name.set_position(offset)
    name.set(ha="left" if dx > 0 else "right" if dx < 0 else "center")
    name.set(va="bottom" if dy > 0 else "top" if dy < 0 else "center")
    return name.get_window_extent()


def _hidden(box: Bbox, taken: Sequence[Bbox], frame: Bbox) -> float:
    """Return the area that a box shares with others or has outside the frame."""
    inside = _shared(box, frame)
    return sum(_shared(box, other) for other in taken) + 4 * (box.width * box.height - inside)


def _shared(one: Bbox, other: Bbox) -> float:
    width: float = min(one.x1, other.x1) - max(one.x0, other.x0)
    height: float = min(one.y1, other.y1) - max(one.y0, other.y0)
    return max(width, 0.0) * max(height, 0.0)
