"""A contact sheet: images of one size in rows, under a heading for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shiftcal.report.figures.canvas import blank, bytes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def sheet_of(rows: list[list[Any]]) -> Any:
    """Lay images of one size out in one white array, with gaps of a sixteenth of their height."""
    import numpy as np

    height, width = rows[0][0].shape[:2]
    gap, columns = max(1, height // 16), max(map(len, rows))
    sheet = np.full((len(rows) * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for i, row in enumerate(rows):
        for j, image in enumerate(row):
            sheet[i * (height + gap) :, j * (width + gap) :][:height, :width] = image
    return sheet


def draw_sheet(axis: Axes, labels: list[str], rows: list[list[Any]], columns: list[str]) -> None:
    """Draw a sheet with its labels into an axis."""
    height, width = rows[0][0].shape[:2]
    gap = max(1, height // 16)
    axis.imshow(sheet_of(rows), interpolation="nearest")
    axis.set_xticks([j * (width + gap) + width / 2 for j in range(len(columns))], columns)
    axis.set_yticks([i * (height + gap) + height / 2 for i in range(len(rows))], labels)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def contact_sheet(labels: list[str], rows: list[list[Any]], columns: list[str]) -> bytes:
    """Lay images of one size out in rows with a label each, under a heading for each column; as PNG."""
    height, width = rows[0][0].shape[:2]
    figure = blank(1.1 * len(columns) + 2.2, 1.1 * len(rows) * height / width + 0.4)
    draw_sheet(figure.add_subplot(), labels, rows, columns)
    return bytes_of(figure)
