"""The record of an audit that nobody made."""

from typing import Any

from shiftcal.records.audit import AuditRecord


def cell(ece: float, accuracy: float = 0.9, **more: Any) -> dict[str, Any]:
    return {
        "accuracy": accuracy,
        "nll": 0.4,
        "brier": 0.2,
        "ece": ece,
        "mce": ece,
        "classwise_ece": ece / 10,
        "adaptive_ece": ece / 10,
        "smooth_ece": ece,
        "n": 1000,
        "confidence": accuracy + ece,
        "gap": ece,
        "noise_floor": 0.01,
        "ece_low": ece - 0.01,
        "ece_high": ece + 0.01,
        "aurc": 0.02,
        "excess_aurc": 0.01,
        "accuracy_at": {"80": 0.97, "90": 0.95},
        "brier_calibration": 0.02,
        "brier_refinement": 0.18,
        "sets": {"aps": {"coverage": 0.85, "size": 1.4}},
        "scaled": {"temperature": {"accuracy": accuracy, "ece": ece / 2}},
        "bins": {"count": [0, 1000], "confidence": [0.0, accuracy], "accuracy": [0.0, accuracy - ece]},
        **more,
    }


def made(**changes: Any) -> AuditRecord:
    shifts = [cell(ece, 0.6, shift=s, severity=k) for s, k, ece in (("fog", 1, 0.1), ("fog", 2, 0.2), ("snow", 1, 0.3))]
    tree = {
        "audit_schema": 1,
        "model": {"name": "model.onnx", "kind": "onnx", "sha256": "ab" * 32},
        "data": {"name": "photos", "classes": ["cat", "dog"], "counts": {"test": 1000}},
        "clean": cell(0.05),
        "shifts": shifts,
        "shifted": cell(0.2, 0.6),
        "calibrators": {"temperature": {"fitted_on": "validation images", "temperature": 1.5}},
        "verdict": ["Right 90.0 % of the time, says 95.0 %."],
    }
    return AuditRecord.model_validate(tree | changes)
