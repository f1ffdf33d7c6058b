"""What the page's script draws from: plain data, small enough to be part of the page."""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Sequence
from typing import Any

from shiftcal.records import Bins, Cell, Epoch, Histogram, Measured
from shiftcal.report.choose import pooled
from shiftcal.report.text import plain
from shiftcal.report.web.entries import CLEAN, Entry, TestSet
from shiftcal.report.web.metrics import METRICS, Metric, value_of

DRAWN = 12  # methods in a figure, and shown at first on the page, which has all: more would make them unreadable
CLASSES = 40  # per-class diagrams of so many classes, those with the largest error, are part of the page
_EPOCH = ("loss", "accuracy", "conflict_rate", "mean_cosine", "learning_rate")
_DIGITS = 5
_PICTURES = 1_200_000  # characters for sample images
_LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "+/"  # of 6 bits each
_NAMED = ("method", "seed", "data.holdout")  # what a run is called by


def page_data(entries: Sequence[Entry], drawn: Sequence[str] | None = None) -> dict[str, Any]:
    """Put entries together: names once, numbers in arrays, rounded to five digits.

    `drawn` names those that the charts show at first, all by default; the others wait in the legend.
    """
    sets = _sets(entries)
    names = list(dict.fromkeys(entry.name for entry in entries))
    states = _states(entries)
    metrics = [metric for metric in METRICS if any(_measured(entry, metric) for entry in entries)]
    return {
        "methods": [plain(name) for name in names],
        "hidden": [] if drawn is None else [place for place, name in enumerate(names) if name not in drawn],
        "metrics": [_described(metric) for metric in metrics],
        "states": [{"key": key, "title": plain(words)} for key, words in states.items()],
        "sets": [{"kind": s.kind, "shift": s.shift and plain(s.shift), "severity": s.severity} for s in sets],
        "runs": [_run(entry, names.index(entry.name), sets, metrics, list(states)) for entry in entries],
        "classes": _classes(entries, names),
        "config": _config(entries),
        "gallery": _gallery(entries, names),
    }


def as_json(data: Any) -> str:
    r"""Write data for a script element: no character in it can end the element or begin a comment.

    Example:
        >>> as_json({"name": "</script>"})
        '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sets(entries: Sequence[Entry]) -> list[TestSet]:
    """List all test sets: clean, others, then shifts in order of their first appearance, by severity."""
    found = dict.fromkeys(one for entry in entries for one in entry.cells)
    shifts = list(dict.fromkeys(one.shift for one in found if one.kind == "shift"))
    under = sorted((s for s in found if s.kind == "shift"), key=lambda s: (shifts.index(s.shift), s.severity or 0))
    return [CLEAN, *(s for s in found if s.kind == "other"), *under]


def _states(entries: Sequence[Entry]) -> dict[str, str]:
    states = {"": "as it is"}
    for entry in entries:
        for key, words in entry.calibrators.items():
            states.setdefault(key, f"after {words}")
    return states


def _measured(entry: Entry, metric: Metric) -> bool:
    return value_of(entry.cells[CLEAN], metric.key) is not None


def _described(metric: Metric) -> dict[str, Any]:
    return {
        "key": metric.key,
        "title": metric.title,
        "words": metric.words,
        "factor": metric.factor,
        "decimals": metric.decimals,
        "better": metric.better,
    }


def _run(
    entry: Entry, method: int, sets: Sequence[TestSet], metrics: Sequence[Metric], states: Sequence[str]
) -> dict[str, Any]:
    cells = [entry.cells.get(one) for one in sets]
    found: dict[str, Any] = {
        "method": method,
        "seed": entry.seed,
        "place": entry.place and plain(entry.place),
        "n": [cell.n if cell else None for cell in cells],
        "values": {state: _values(cells, metrics, state) for state in states},
        "bins": {state: [_bins(_in_state(cell, state)) for cell in cells] for state in states},
        "history": _history(entry.history),
        "about": {key: plain(words) for key, words in entry.about.items()},
    }
    floors = [value_of(cell, "noise_floor") if cell else None for cell in cells]
    if any(floor is not None for floor in floors):
        ends = [[value_of(cell, key) if cell else None for key in ("ece_low", "ece_high")] for cell in cells]
        found |= {"floor": _short(floors), "interval": _short(ends)}
    return found | {"risk": _risk(entry, sets)}


def _in_state(cell: Cell | None, state: str) -> Measured | None:
    return cell if cell is None or not state else cell.scaled.get(state)


def _values(cells: Sequence[Cell | None], metrics: Sequence[Metric], state: str) -> list[list[float | None] | None]:
    """List each metric's values over the test sets; None for a metric that no set has."""
    found: list[list[float | None] | None] = []
    for metric in metrics:
        measured = [_in_state(cell, state) for cell in cells]
        values = [
            None if one is None or (state and not metric.scales) else value_of(one, metric.key) for one in measured
        ]
        found.append(_short(values) if any(value is not None for value in values) else None)
    return found


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    return [_short(item) for item in value] if isinstance(value, list) else value


def _bins(measured: Measured | None) -> str | None:
    return None if measured is None or measured.bins is None else coded(packed(measured.bins))


def coded(numbers: Iterable[int]) -> str:
    """Write whole numbers in half as many characters: five bits in a letter, lowest first; the sixth says more follow.

    Example:
        >>> coded([0, 31, 32, 1000])
        'AfgBof'
    """
    text = ""
    for number in numbers:
        while number > 31:
            text += _LETTERS[32 + number % 32]
            number //= 32
        text += _LETTERS[number]
    return text


def packed(bins: Bins) -> list[int]:
    """Write bins as whole numbers: how many there are, then place, count, hits and confidence in 1/10,000 of each.

    Empty bins are left out.
    """
    found = [len(bins.count)]
    for m, (n, says, right) in enumerate(zip(bins.count, bins.confidence, bins.accuracy, strict=True)):
        if n:
            found += [m, n, round(right * n), round(10_000 * says)]
    return found


def _risk(entry: Entry, sets: Sequence[TestSet]) -> dict[str, str]:
    """Give histograms of right and wrong predictions: clean, of each shift with all its severities, of all shifts."""
    parts: dict[str, list[Histogram | None]] = {}
    for one in sets:
        cell = entry.cells.get(one)
        if cell is None or one.kind == "other":
            continue
        for part in ("clean",) if one == CLEAN else ("shifted", f"shift {plain(one.shift)}"):
            parts.setdefault(part, []).append(cell.histogram)
    return {part: coded(_added([h for h in some if h])) for part, some in parts.items() if some and None not in some}


def _added(histograms: Sequence[Histogram]) -> list[int]:
    """Add histograms up: the number of steps, then step, right and wrong of each that is not empty."""
    found = [len(histograms[0].right)]
    right = [sum(step) for step in zip(*(h.right for h in histograms), strict=True)]
    wrong = [sum(step) for step in zip(*(h.wrong for h in histograms), strict=True)]
    for step, (good, bad) in enumerate(zip(right, wrong, strict=True)):
        if good or bad:
            found += [step, good, bad]
    return found


def _history(epochs: Sequence[Epoch]) -> dict[str, list[float | None]]:
    """List what was seen at each epoch; what no epoch has is left out."""
    found: dict[str, list[Any]] = {"epoch": [e.epoch for e in epochs]}
    found |= {name: [getattr(e, name) for e in epochs] for name in _EPOCH}
    for name in dict.fromkeys(name for e in epochs for name in e.validation):
        found[f"validation {plain(name)}"] = [e.validation.get(name) for e in epochs]
    for kind in ("test", "noise"):
        measured: list[dict[str, dict[str, float]]] = [getattr(epoch, kind) for epoch in epochs]
        for part, name in dict.fromkeys((part, name) for one in measured for part, own in one.items() for name in own):
            found[f"{kind} {plain(part)} {plain(name)}"] = [one.get(part, {}).get(name) for one in measured]
    return {name: _short(values) for name, values in found.items() if any(v is not None for v in values)}


def _classes(entries: Sequence[Entry], names: Sequence[str]) -> list[dict[str, Any]]:
    """Give each method's diagrams by class, over its seeds; of many classes those with the largest error."""
    found = []
    for number, name in enumerate(names):
        own = [entry for entry in entries if entry.name == name]
        for part in ("clean", "shifted"):
            diagrams = [entry.by_class.get(part, ()) for entry in own]
            if not all(diagrams) or len({len(d) for d in diagrams}) > 1:
                continue
            together = [pooled(bins) for bins in zip(*diagrams, strict=True)]
            titles = [*own[0].classes, *(f"class {k}" for k in range(len(own[0].classes), len(together)))]
            errors = [_error(bins) for bins in together]
            worst = sorted(range(len(together)), key=lambda k: -errors[k])[:CLASSES]
            rows = [[plain(titles[k]), _short(errors[k]), packed(together[k])] for k in worst]
            found.append({"method": number, "part": part, "of": len(together), "rows": rows})
    return found


def _error(bins: Bins) -> float:
    gaps = (n * abs(c - a) for n, c, a in zip(bins.count, bins.confidence, bins.accuracy, strict=True))
    return sum(gaps) / sum(bins.count)


def _config(entries: Sequence[Entry]) -> dict[str, Any]:
    """Give what all share once, and what differs for each."""
    named = dict.fromkeys(key for entry in entries for key in entry.config)
    keys = [key for key in named if key not in _NAMED]
    texts = [{key: _text(entry.config, key) for key in keys} for entry in entries]
    differing = [key for key in keys if len({own[key] for own in texts}) > 1]
    common = {plain(key): texts[0][key] for key in keys if key not in differing}
    return {
        "common": common,
        "differing": [plain(key) for key in differing],
        "own": [[own[key] for key in differing] for own in texts],
    }


def _text(config: dict[str, Any], key: str) -> str:
    value = config.get(key)
    if value is None:
        return "not set" if key in config else "–"  # an earlier version did not know the key
    return plain(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _gallery(entries: Sequence[Entry], names: Sequence[str]) -> list[dict[str, Any]]:
    """List sample images, of as many methods as there is room for."""
    found: list[dict[str, Any]] = []
    room = _PICTURES
    for entry in _first_of_each(entries):
        room -= sum(len(sample.png) for sample in entry.gallery)
        if room >= 0:
            found += _samples(entry, names.index(entry.name))
    return found


def _samples(entry: Entry, method: int) -> list[dict[str, Any]]:
    return [
        {
            "method": method,
            "seed": entry.seed,
            "shift": sample.shift and plain(sample.shift),
            "severity": sample.severity,
            "true": plain(sample.true),
            "predicted": plain(sample.predicted),
            "confidence": _short(sample.confidence),
            "right": sample.right,
            "png": sample.png,
        }
        for sample in entry.gallery
    ]


def _first_of_each(entries: Iterable[Entry]) -> list[Entry]:
    """Return the first entry of each name that has samples."""
    found: dict[str, Entry] = {}
    for entry in entries:
        if entry.gallery:
            found.setdefault(entry.name, entry)
    return list(found.values())
