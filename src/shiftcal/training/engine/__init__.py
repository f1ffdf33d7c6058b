"""The engine: how steps are executed. Precision, compilation, CUDA graphs and ranks wrap the step, never replace it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from shiftcal import _distributed
from shiftcal.training.accumulate import accumulated
from shiftcal.training.engine.capture import Captured
from shiftcal.training.engine.compile import can_compile_gradients, compiled_model, compiled_ops, compiler_errors
from shiftcal.training.engine.distributed import ShardedOps
from shiftcal.training.engine.precision import Autocast, uses_bfloat16
from shiftcal.training.inputs import Inputs
from shiftcal.training.objective import Objective
from shiftcal.training.settings import EngineSettings
from shiftcal.training.step import EAGER, Ops, StepReport, training_step

WARMUP = 3  # eager steps before a capture: kernels are chosen and the optimiser's state is made in them
COMPILE_FROM = 60_000  # steps from which on compilation is worth its minutes


class Engine:
    """Executes the steps of a run in the fastest way that its device and model allow.

    Args:
        model: The model in training.
        optimizer: Its optimiser.
        settings: What is asked for.
        step_size: Images in a whole step; smaller ones, at the end of an epoch, are not captured.
        after_step: Called with each step's report and number of images, inside the captured graph.
        micro_batch: Images in a micro-batch; None takes a step's images at once.
        rectify_per: What a rule sees, see `accumulated`.
        steps: How many steps there will be, by which "auto" decides on compilation.
        say: Where to say what cannot be done.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: EngineSettings,
        *,
        step_size: int,
        after_step: Sequence[Callable[[StepReport, int], None]] = (),
        micro_batch: int | None = None,
        rectify_per: Literal["batch", "micro_batch"] = "batch",
        steps: int = 0,
        say: Callable[[str], None] = print,
    ) -> None:
        device = next(model.parameters()).device
        cuda, alone = device.type == "cuda", not _distributed.is_distributed()
        self.model: nn.Module = Autocast(model) if uses_bfloat16(settings.precision, device) else model
        self.optimizer, self._size, self._after, self._say = optimizer, step_size, after_step, say

        def whole(ops: Ops) -> Ops:
            return ops if micro_batch is None else accumulated(ops, micro_batch, rectify_per)

        base = EAGER if alone else ShardedOps(overlap=micro_batch is None).ops()
        self._ways: list[tuple[nn.Module, Ops]] = [(self.model, whole(base))]  # the fastest last
        if settings.compile == "on" or (settings.compile == "auto" and cuda and steps >= COMPILE_FROM):
            self._ways.append((compiled_model(self.model), whole(base)))
            if alone and can_compile_gradients():
                self._ways.append((self.model, whole(compiled_ops(base))))
            say("Steps are compiled: the first of each phase takes seconds on small networks, minutes on large ones.")
        self._captures = cuda and settings.capture != "off" and alone
        self._graphs: dict[int, Captured] = {}
        self._seen: dict[int, int] = {}
        self._stream: Any = torch.cuda.Stream(device) if cuda else None

    def describe(self) -> dict[str, Any]:
        """Tell how steps were executed, for a record."""
        precision = "bf16" if isinstance(self.model, Autocast) else "fp32"
        return {"precision": precision, "captured": bool(self._graphs), "compiled": len(self._ways) > 1}

    def step(self, objective: Objective, mix: Inputs, original: Inputs | None) -> None:
        """Do one step. Whole batches are captured after a few; the smaller last one of an epoch never is."""
        # Unreadable files may have left a hole in either batch.
        whole = len(mix.targets) == self._size and (original is None or len(original.targets) == self._size)
        if not (self._captures and whole):
            self._execute(objective, mix, original, whole=whole)
            return
        key = id(objective)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= WARMUP:
            self._on_side_stream(objective, mix, original)
            return
        if key not in self._graphs:
            self._capture(key, objective, mix, original)
            if not self._captures:
                self._execute(objective, mix, original, whole=whole)
                return
        self._graphs[key].replay(mix, original)

    def _execute(self, objective: Objective, mix: Inputs, original: Inputs | None, *, whole: bool) -> None:
        place = len(self._ways) - 1 if whole else 0
        model, ops = self._ways[place]
        try:
            report = training_step(model, self.optimizer, objective, mix, original, ops)
        except compiler_errors() as error:
            if place == 0:
                raise
            self._ways.pop()
            left = "the model alone is" if len(self._ways) > 1 else "nothing is"
            self._say(f"Steps are not compiled as a whole, {left}: {_reason(error)}")
            self._execute(objective, mix, original, whole=whole)
            return
        for call in self._after:
            call(report, len(mix.targets))

    def _on_side_stream(self, objective: Objective, mix: Inputs, original: Inputs | None) -> None:
        """Do a step on the stream of captures: what it leaves behind must not belong to the default stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._execute(objective, mix, original, whole=True)
        torch.cuda.current_stream().wait_stream(self._stream)

    def _capture(self, key: int, objective: Objective, mix: Inputs, original: Inputs | None) -> None:
        self._graphs.clear()  # the graph of the phase before, and its memory
        try:
            self._graphs[key] = Captured(
                lambda a, b: self._execute(objective, a, b, whole=True), mix, original, self._stream
            )
        except RuntimeError as error:
            self._captures = False
            self._say(f"Steps are not captured in a CUDA graph: {_reason(error)}")
            torch.cuda.synchronize()


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
