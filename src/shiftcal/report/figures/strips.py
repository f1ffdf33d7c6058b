"""Filtered images by quality λ, and reliability of models trained with it (FGR paper, figure "diffLambda")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shiftcal.records import RunRecord
from shiftcal.records.arrays import Arrays
from shiftcal.report.choose import pooled
from shiftcal.report.figures.canvas import blank
from shiftcal.report.figures.compared import check_only
from shiftcal.report.figures.config_keys import QUALITY, number_of
from shiftcal.report.figures.reliability import Panel, draw_panels
from shiftcal.report.figures.sensitivity import metrics_of
from shiftcal.report.figures.sheet import draw_sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Strips:
    """The same images untouched and filtered, and the reliability of models trained with each quality.

    Attributes:
        labels: "untouched", or the quality, for each row.
        rows: Rows of images, uint8 [height, width, 3].
        panels: Reliability on the clean test set of runs with one quality each, the weakest filter first.
    """

    labels: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    panels: tuple[Panel, ...]


def strip_data(arrays: Arrays, records: Sequence[RunRecord] = ()) -> Strips:
    """Take the images from arrays, and reliability from those records whose runs filter with a single quality."""
    qualities = arrays.array("qualities", None)
    images = arrays.array("images", len(qualities) + 1, None, None, None, 3)
    for name, count in (("qualities", len(qualities)), ("images", images.shape[1])):
        arrays.check_few(name, count)
    arrays.check_few("pixels", images.shape[2] * images.shape[3], most=2**24)
    labels = ("untouched", *(f"λ = {quality:g}" for quality in qualities.tolist()))
    return Strips(labels, tuple(tuple(row) for row in images.astype("uint8")), tuple(panels_by_quality(records)))


def panels_by_quality(records: Sequence[RunRecord]) -> list[Panel]:
    """Pool the clean reliability of each quality's seeds; without several qualities of one method there is none."""
    chosen = [r for r in records if _is_single(r)]
    by_quality: dict[float, list[RunRecord]] = {}
    for record in chosen:
        by_quality.setdefault(number_of(record, QUALITY), []).append(record)
    if len(by_quality) < 2 or len({record.method for record in chosen}) > 1:
        return []
    check_only(chosen, {QUALITY})
    panels = []
    for quality in sorted(by_quality, reverse=True):
        own = by_quality[quality]
        eces = metrics_of(own)["clean", "ece"]
        bins = pooled([record.evaluation.reliability.clean for record in own])
        panels.append(Panel(f"λ = {quality:g}", "in distribution", bins, sum(eces) / len(eces)))
    return panels


def _is_single(record: RunRecord) -> bool:
    section = record.config.get("filter")
    qualities = section.get("qualities") if isinstance(section, dict) else None
    return isinstance(qualities, list | tuple) and len(qualities) == 1


def draw_strips(strips: Strips) -> Figure:
    """Draw the images, a row for each quality, and below them the reliability diagrams."""
    count = len(strips.rows[0])
    wide = max(0.95 * count + 1.9, 2.6 * len(strips.panels))
    height, width = strips.rows[0][0].shape[:2]
    above = 0.95 * len(strips.rows) * height / width + 0.3
    below = 3.5 if strips.panels else 0.0
    figure = blank(wide, above + below)
    parts = figure.subfigures(2 if below else 1, 1, height_ratios=[above, below] if below else None, squeeze=False)
    draw_sheet(parts[0][0].add_subplot(), list(strips.labels), [list(row) for row in strips.rows], [])
    if below:
        draw_panels(parts[1][0], [strips.panels], max(len(strips.panels), int(wide / 3.2)))
    return figure
