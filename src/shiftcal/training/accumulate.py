"""Gradient accumulation: a step of several micro-batches, rectified together or one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Literal

import torch

from shiftcal.gradients import Gradients, Rectification
from shiftcal.training.inputs import Inputs
from shiftcal.training.step import Ops, Statistics


def accumulated(ops: Ops, micro_batch: int, per: Literal["batch", "micro_batch"] = "batch") -> Ops:
    """Return operations that go through a batch in micro-batches and average their gradients.

    Per "batch" the averages are reduced over the ranks and rectified once; per "micro_batch" each micro-batch's
    gradients are reduced and rectified, and the results averaged, which is what the FGR paper's study of batch sizes
    reasons about. What is then reported is the mean over the micro-batches of what happened to each.
    """
    each = per == "micro_batch"

    def in_parts(
        model: Any, objective: Any, parameters: Any, constrained: int, mix: Inputs, original: Inputs | None
    ) -> tuple[Gradients, Statistics]:
        total: Gradients | None = None
        seen: list[Statistics] = []
        reports: list[tuple[Rectification, float]] = []
        for part, of_original, share in micro_batches(mix, original, micro_batch):
            found, stats = ops.gradients(model, objective, parameters, constrained, part, of_original)
            if each:
                found = ops.all_reduce(found)
                final, report = ops.combine(found.vector, found.size, objective.rule, objective.momentum)
                found = replace(found, vector=final)
                reports += [] if report is None else [(report, share)]
            found = found.flattened(parameters)
            total = found.scale(share) if total is None else total.add(found, share)
            seen.append(Statistics(stats.loss * share, stats.correct))
        return _there(total), _summed(seen)._replace(report=mean_report(reports) if reports else None)

    return Ops(gradients=in_parts) if each else replace(ops, gradients=in_parts)


def micro_batches(mix: Inputs, original: Inputs | None, size: int) -> Iterator[tuple[Inputs, Inputs | None, float]]:
    """Cut a batch and that of the constraint into as many parts, and tell each one's share of the batch."""
    count = len(mix.targets)
    parts = -(-count // size)
    bounds = [min(k * size, count) for k in range(parts + 1)]
    others = [round(k * len(original.targets) / parts) for k in range(parts + 1)] if original else []
    for k in range(parts):
        second = original.rows(others[k], others[k + 1]) if original else None
        yield mix.rows(bounds[k], bounds[k + 1]), second, (bounds[k + 1] - bounds[k]) / count


def mean_report(reports: Sequence[tuple[Rectification, float]]) -> Rectification:
    """Average what happened to each micro-batch's gradients, by their shares."""
    return Rectification(
        **{
            field.name: torch.stack([getattr(report, field.name) * share for report, share in reports]).sum()
            for field in fields(Rectification)
        }
    )


def _summed(seen: Sequence[Statistics]) -> Statistics:
    return Statistics(torch.stack([s.loss for s in seen]).sum(), torch.stack([s.correct for s in seen]).sum())


def _there(total: Gradients | None) -> Gradients:
    if total is None:
        raise ValueError("A step should have at least one image. Found none.")
    return total
