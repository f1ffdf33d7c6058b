"""What methods cost: seconds, and images a second, on which device."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from shiftcal.records import Epoch, RunRecord
from shiftcal.report.labels import base_of, holdout_of, methods_of, settings_of
from shiftcal.report.text import for_markdown, markdown_table, plain

BASELINE = "ce"  # what costs are multiples of
HEADS = ("s an epoch", "s in all", f"× {BASELINE}", "images/s", "device")
CAPTION = (
    "Seconds of training an epoch (median, without the first), seconds of training and evaluation in all, training "
    "seconds in all as a multiple of those of ce with the same seed on the same device, and images a second (median); "
    "mean ± standard deviation over runs. Runs that shared a device took longer."
)


def rows_of(records: list[RunRecord]) -> list[tuple[str, list[list[str]]]]:
    """List for each setting its title and a row for each method: its name, and a text for each head."""
    return [
        (setting.title, [_row(name, setting.records) for name in methods_of(setting.records)])
        for setting in settings_of(records)
    ]


def markdown(records: list[RunRecord]) -> str:
    """Write the cost of methods in Markdown."""
    lines: list[str] = []
    for title, rows in rows_of(records):
        head = f"{title}: cost" if title else "Cost"
        lines += [*markdown_table([for_markdown(head), *HEADS], [[*map(for_markdown, row)] for row in rows]), ""]
    return "\n".join([*lines, CAPTION, ""])


def _row(method: str, records: list[RunRecord]) -> list[str]:
    own = [record for record in records if record.method == method]
    baseline = _baseline(method, records)
    plain_runs = {_key(record): _training(record) for record in records if record.method == baseline}
    ratios = [_training(record) / seconds for record in own if (seconds := plain_runs.get(_key(record)))]
    return [
        method,
        _mean(median for record in own if (median := _median(record, "seconds")) is not None),
        _mean(_training(record) + record.seconds.get("evaluate", 0.0) for record in own if record.seconds),
        _mean(ratios),
        _mean(median for record in own if (median := _median(record, "images_per_second")) is not None),
        "; ".join(dict.fromkeys(device_of(record) for record in own)),
    ]


def _baseline(method: str, records: list[RunRecord]) -> str | None:
    """Name the ce to compare with: that with the same values where it was swept too, or the only one."""
    plain = {record.method for record in records if base_of(record.method) == BASELINE}
    same = BASELINE + method.removeprefix(base_of(method))
    return same if same in plain else next(iter(plain)) if len(plain) == 1 else None


def _key(record: RunRecord) -> tuple[int, str | None, str]:
    return record.seed, holdout_of(record), device_of(record)


def _training(record: RunRecord) -> float:
    return record.seconds.get("train", 0.0) + record.seconds.get("features", 0.0)


def _median(record: RunRecord, name: str) -> float | None:
    """Return the median over epochs without the first, which may compile or fill caches."""
    epochs: tuple[Epoch, ...] = record.history[1:] or record.history
    found = [value for epoch in epochs if (value := getattr(epoch, name)) is not None]
    return statistics.median(found) if found else None


def device_of(record: RunRecord) -> str:
    """Name the device of a run: its GPU, or its processor with the number of threads."""
    device = record.device
    name = device.get("name") or record.machine.get("processor") or device.get("type") or "?"
    threads = f", {device['threads']} threads" if device.get("threads") else ""
    several = f", {device['processes']} processes" if device.get("processes") not in (None, 1) else ""
    return plain(f"{name}{threads}{several}")


def _mean(values: Iterable[float]) -> str:
    """Write mean ± standard deviation, or a dash."""
    found = list(values)
    if not found:
        return "–"
    deviation = f" ± {_number(statistics.stdev(found))}" if len(found) > 1 else ""
    return f"{_number(statistics.mean(found))}{deviation}"


def _number(value: float) -> str:
    return f"{value:.0f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"
