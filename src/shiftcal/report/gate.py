"""What a gate found, in Markdown and in JSON."""

from __future__ import annotations

from collections.abc import Sequence

from shiftcal._io import to_json
from shiftcal.auditing.gate import Check, chosen_cells, overall
from shiftcal.auditing.verdict import percent
from shiftcal.records.audit import AuditRecord
from shiftcal.report.text import for_markdown


def summary(
    record: AuditRecord,
    found: Sequence[Check],
    *,
    strict: bool,
    where: Sequence[str] = (),
    calibrator: str | None = None,
) -> str:
    """Write the result in Markdown, for a pull request, and what of the audit was judged."""
    result = overall(found, strict=strict)
    model = f"{record.model.name}{f' after {calibrator}' if calibrator else ''}"
    lines = [f"### Calibration gate: {result}", "", for_markdown(f"{model} on {record.data.name}"), ""]
    lines += [for_markdown(_chosen(record, where)), ""] if where else []
    lines += ["| | limit | found | 95 % interval | result |", "|---|---:|---:|---:|---|"]
    for check in found:
        sign = "≤" if check.upper else "≥"
        value = "–" if check.value is None else _percent(check.value, check.limit)
        known = check.value is not None and (check.low, check.high) != (0.0, 1.0)
        interval = f"{percent(check.low)} to {percent(check.high)}" if known else "–"
        reason = check.reason or (check.no_interval if strict else "")
        word = check.result(strict=strict) + (f": {reason}" if reason else "")
        name, word = for_markdown(check.name), for_markdown(word)
        lines.append(f"| {name} | {sign} {_percent(check.limit, check.value)} | {value} | {interval} | {word} |")
    return "\n".join([*lines, "", *map(for_markdown, record.verdict), ""])


def as_json(record: AuditRecord, found: Sequence[Check], *, strict: bool, where: Sequence[str] = ()) -> bytes:
    """Write the result for a program."""
    checks = [
        {"name": c.name, "limit": c.limit, "upper": c.upper, "value": c.value, "low": c.low, "high": c.high}
        | {"result": c.result(strict=strict), "reason": c.reason or (c.no_interval if strict else "")}
        for c in found
    ]
    judged = {"strict": strict, "where": list(where), "shifted_sets": len(chosen_cells(record, where))}
    result = {"result": overall(found, strict=strict), "model": record.model.name, "data": record.data.name}
    return to_json(result | judged | {"checks": checks})


def _chosen(record: AuditRecord, where: Sequence[str]) -> str:
    cells = chosen_cells(record, where)
    kept = {cell.shift for cell in cells}
    left_out = list(dict.fromkeys(str(cell.shift) for cell in record.shifts if cell.shift not in kept))
    more = f"; without {', '.join(left_out[:5])}{', …' if len(left_out) > 5 else ''}" if left_out else ""
    return f"Shifted test sets with {' and '.join(where)}: {len(cells)} of {len(record.shifts)}{more}."


def _percent(value: float, other: float | None) -> str:
    """Write a fraction in per cent, with the digits that tell it from another one."""
    if other is None or value == other or percent(value) != percent(other):
        return percent(value)
    digits = next((d for d in range(2, 12) if f"{100 * value:.{d}f}" != f"{100 * other:.{d}f}"), 1)
    return f"{100 * value:.{digits}f} %"
