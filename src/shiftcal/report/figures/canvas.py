"""What all figures share: a canvas without pyplot's global state, colours, legends, and files that do not change."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shiftcal._errors import unknown
from shiftcal._io import write_atomically
from shiftcal.methods import METHODS
from shiftcal.report.text import for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What figures by method show, and on which images.
METRICS = {"accuracy": "accuracy, %", "ece": "ECE, %"}
PARTS = {"clean": "in distribution", "shifted": "under shift"}
FORMATS = ("png", "pdf", "svg")
# Without the time at which they were written, and with fixed names of parts, the same figure is the same file.
_METADATA: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}
_RC: dict[Any, Any] = {"svg.hashsalt": "shiftcal", "pdf.fonttype": 42}
# A method has the same colour in every figure: its place in METHODS.
_LINES: tuple[str, ...] = (
    *("#1b1b1e", "#8d6e63", "#c0a000", "#c44e52", "#b07aa1", "#f28e2b", "#9c755f", "#bab0ac"),
    *("#2e7d6b", "#76b7b2", "#59a14f", "#86bc86", "#4e79a7", "#a0cbe8", "#7a5195", "#d37295"),
    *("#fabfd2", "#1f9e89", "#35b779", "#a3a500", "#e15759", "#3b5dc9", "#6c8cff", "#8b4ac7"),
    *("#c79bf2", "#5c6b73", "#ff7f0e", "#d62728", "#e377c2", "#17becf", "#006d77", "#2b3a67"),
    *("#b5651d", "#79706e"),
)
_OTHERS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5c4b8a", "#79706e")
_MARKERS = "osD^vPX<>ph*"


def blank(width: float, height: float) -> Figure:
    """Make an empty figure of a size in inches. Not by pyplot: no global state, no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def bytes_of(figure: Figure, kind: str = "png") -> bytes:
    """Write a figure as PNG, PDF or SVG; the same figure gives the same bytes."""
    from matplotlib import rc_context

    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    buffer = io.BytesIO()
    with rc_context(_RC):
        figure.savefig(buffer, format=kind, metadata=_METADATA[kind])
    return buffer.getvalue()


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file that ends in .png, .pdf or .svg."""
    write_atomically(path, bytes_of(figure, path.suffix.removeprefix(".")))


def colour_of(method: str) -> str:
    """Return a method's colour; unknown methods share the last one."""
    names = list(METHODS)
    return _LINES[names.index(method) if method in names[: len(_LINES)] else -1]


def colours_of(labels: Sequence[str]) -> dict[str, str]:
    """Return a colour for each label: a method's own, and different ones for what is no method."""
    others = iter(_OTHERS * (len(labels) // len(_OTHERS) + 1))
    return {label: colour_of(label) if label in METHODS else next(others) for label in labels}


def marker_of(place: int) -> str:
    """Return a marker, so that lines can be told apart without colours."""
    return _MARKERS[place % len(_MARKERS)]


def legend_below(figure: Figure, axis: Axes, columns: int = 6) -> None:
    """Put one legend for all axes below them, where it hides nothing."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        rows = -(-len(handles) // columns)
        even = -(-len(handles) // rows)
        figure.legend(handles, labels, loc="outside lower center", ncols=even, frameon=False)


def shown(label: object) -> str:
    """Write a label from elsewhere as a figure shows it, underscores as spaces and not too long."""
    text = for_figure(str(label).replace("_", " "))
    return text if len(text) <= 40 else f"{text[:39]}…"
