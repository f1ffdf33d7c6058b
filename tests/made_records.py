"""Records of runs that nobody ran."""

from typing import Any

from shiftcal.records import SCHEMA, Evaluation, RunRecord, parse_record


def metrics(ece: float, accuracy: float = 0.9) -> dict[str, Any]:
    values = dict.fromkeys(("classwise_ece", "adaptive_ece", "smooth_ece"), ece)
    values |= {"accuracy": accuracy, "ece": ece, "nll": 0.5, "brier": 0.1, "mce": 0.2}
    return values | {"scaled": {"clean": {"ece": ece}}}


BINS = {"count": [0, 4, 6], "confidence": [0.0, 0.6, 0.9], "accuracy": [0.0, 0.5, 1.0]}


def plain(method: str, seed: int, ece: float, **evaluation: Any) -> dict[str, Any]:
    """What a record's file holds, in today's schema."""
    shifts = [{"shift": s, "severity": k, **metrics(ece * k)} for s in ("fog", "snow") for k in (1, 2)]
    return {
        "schema": SCHEMA,
        "recipe": "demo",
        "config": {"data": {"name": "shapes"}, "evaluation": {"bins": 15}},
        "method": method,
        "seed": seed,
        "machine": {"processor": "<a chip> & co", "cores": 2},
        "versions": {"torch": "2.13.0"},
        "seconds": {"train": 83.0},
        "history": [
            {"epoch": 1, "loss": 1.0, "accuracy": 0.1, "seconds": 1.0},
            {"epoch": 2, "loss": 0.5, "accuracy": 0.2, "seconds": 1.0, "conflict_rate": 0.25},
        ],
        "evaluation": {
            "temperatures": {"clean": 1.5},
            "validation": metrics(ece / 10),
            "clean": metrics(ece / 10),
            "shifted": metrics(ece),
            "shifts": shifts,
            "reliability": {"clean": BINS, "shifted": BINS},
            **evaluation,
        },
    }


def record(method: str, seed: int, ece: float, **changes: Any) -> RunRecord:
    """A record; keys of an evaluation go there, the others belong to the record."""
    own = {key: changes.pop(key) for key in list(changes) if key in Evaluation.model_fields}
    return parse_record(plain(method, seed, ece, **own) | changes, "here")


def held_out(method: str, seed: int, domain: str, shifted: float, clean: float) -> RunRecord:
    """A record of a run with one domain held out, which has no severities."""
    config = plain(method, seed, clean)["config"] | {"data": {"name": "pacs", "holdout": domain}}
    shifts = [{"shift": domain, "severity": 1, **metrics(shifted)}]
    return record(method, seed, shifted, config=config, clean=metrics(clean), shifts=shifts)
