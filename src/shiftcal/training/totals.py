"""Sums over the steps of an epoch, on the device until they are read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shiftcal.training.step import StepReport


class Totals:
    """Sums over the steps of an epoch, on the device until they are read."""

    def __init__(self, frozen: Tensor) -> None:
        device, self._frozen = frozen.device, frozen  # the optimiser's flag
        self._sums = torch.zeros(8, dtype=torch.float64, device=device)
        self._zero, self._one = torch.zeros((), device=device), torch.ones((), device=device)
        self._constrained = False
        self._pending: tuple[Tensor, Any] | None = None

    def reset(self, *, constrained: bool) -> None:
        """Start an epoch."""
        self._sums.zero_()
        self._constrained, self._pending = constrained, None

    def add(self, report: StepReport, size: int) -> None:
        """Add one step."""
        r = report.rectification
        parts = [self._zero] * 3 if r is None else [r.conflict, r.cosine, r.skipped]
        # The statistics of one step fit into float32; the sums are kept in float64.
        values = [report.loss * size, report.correct, self._one * size, self._one, *parts, 1 - self._frozen]
        self._sums += torch.stack([value.float() for value in values])

    def state(self) -> Tensor:
        """Return the sums, for a checkpoint."""
        return self._sums.cpu()

    def restore(self, sums: Tensor) -> None:
        """Continue from the sums of a checkpoint."""
        self._sums.copy_(sums)

    def read(self) -> dict[str, Any]:
        """Return the means so far; this waits for the device."""
        return self._describe(self._sums.tolist())

    def peek(self) -> dict[str, Any] | None:
        """Return the means as of an earlier step, if they have arrived from the device: this never waits."""
        if not self._sums.is_cuda:
            return self.read()
        result = None
        if self._pending is not None and self._pending[1].query():
            result = self._describe(self._pending[0].tolist())
            self._pending = None
        if self._pending is None:
            host = torch.empty(self._sums.shape, dtype=self._sums.dtype, pin_memory=True)
            host.copy_(self._sums, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._pending = (host, event)
        return result

    def _describe(self, sums: list[float]) -> dict[str, Any]:
        loss, correct, size, steps, conflict, cosine, skipped, good = sums
        result: dict[str, Any] = {"loss": loss / size, "accuracy": correct / size}
        result |= {"steps": round(steps), "good_steps": round(good)}
        if self._constrained:
            result["conflict_rate"], result["mean_cosine"] = conflict / steps, cosine / steps
            result["skipped"] = round(skipped)
        return result
