"""What a gate found, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from shiftcal.auditing.gate import Check, overall
from shiftcal.auditing.verdict import percent
from shiftcal.records.audit import AuditRecord
from shiftcal.report.text import for_markdown


def summary(record: AuditRecord, found: Sequence[Check], *, strict: bool) -> str:
    """Write the result in Markdown, for a pull request."""
    result = overall(found, strict=strict)
    lines = [f"### Calibration gate: {result}", "", for_markdown(f"{record.model.name} on {record.data.name}"), ""]
    lines += ["| | limit | found | 95 % interval | result |", "|---|---:|---:|---:|---|"]
    for check in found:
        sign = "≤" if check.upper else "≥"
        value = "–" if check.value is None else percent(check.value)
        known = check.value is not None and (check.low, check.high) != (0.0, 1.0)
        interval = f"{percent(check.low)} to {percent(check.high)}" if known else "–"
        reason = check.reason or (check.no_interval if strict else "")
        word = check.result(strict=strict) + (f": {reason}" if reason else "")
        name, word = for_markdown(check.name), for_markdown(word)
        lines.append(f"| {name} | {sign} {percent(check.limit)} | {value} | {interval} | {word} |")
    return "\n".join([*lines, "", *map(for_markdown, record.verdict), ""])
