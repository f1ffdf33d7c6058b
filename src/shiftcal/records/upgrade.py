"""Records of earlier schemas, brought up to date."""

from __future__ import annotations

from typing import Any

from shiftcal.records.models import SCHEMA


def upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """Bring a record of schema 1 or 2 up to date."""
    schema = content.get("schema")
    if schema == SCHEMA or schema not in (1, 2):
        return content
    new = content | {"schema": SCHEMA, "evaluation": _upgraded(content["evaluation"])}
    if content.get("before"):
        new["before"] = _upgraded(content["before"])
    new["also"] = {name: _upgraded(found) for name, found in content.get("also", {}).items()}
    return new


def _upgraded(old: dict[str, Any]) -> dict[str, Any]:
    reliability, by_class = old["reliability"], old.get("class_reliability", {})
    return {
        "temperatures": old.get("temperatures") or {"clean": old["temperature"]},
        "validation": _upgraded_cell(old["validation"]),
        "clean": _upgraded_cell(old["id"]),
        "clean_is_validation": old.get("id_is_validation", False),
        "shifts": [_upgraded_cell(row) for row in old["shifts"]],
        "shifted": _upgraded_cell(old["shifted"]) if old["shifted"] else None,
        "other_tests": {name: _upgraded_cell(row) for name, row in old.get("besides", {}).items()},
        "reliability": {
            "clean": reliability["id"],
            "shifted": reliability["shifted"],
            "clean_by_class": by_class.get("id") or (),
            "shifted_by_class": by_class.get("shifted") or (),
        },
        "corruptions": old.get("corruptions") or {},
        "epoch": old.get("epoch"),
    }


def _upgraded_cell(row: dict[str, Any]) -> dict[str, Any]:
    return row if "scaled" in row else row | {"scaled": {"clean": {"ece": row["ece_ts"]}}}
