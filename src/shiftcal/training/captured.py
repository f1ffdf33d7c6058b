"""Speed around the step: half precision, compilation and CUDA graphs wrap `training_step` and never replace it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from shiftcal import _ranks
from shiftcal.rectification import Function, Through, as_it_is
from shiftcal.training.averaging import WeightAverage
from shiftcal.training.batches import Inputs
from shiftcal.training.config import Config, EngineConfig
from shiftcal.training.objective import Objective
from shiftcal.training.step import StepReport, training_step

_WARMUP = 3  # eager steps before a capture: kernels are chosen and the optimiser's state is made in them
_TRACES_GRADIENTS = "trace_autograd_ops"  # a setting of torch.compile's, from torch 2.11 on
_PAYS = 60_000  # steps from which on the minutes of compilation are won back


class Autocast(nn.Module):
    """A model whose forward pass runs in bfloat16 where that is safe; weights and logits are in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        # Casts are not cached from one forward pass to the next: a captured graph must hold them all.
        with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
            logits: Tensor = self.model(images)
        return logits.float()


def in_half(engine: EngineConfig, device: torch.device) -> bool:
    """Tell whether forward passes run in bfloat16: by default on a GPU."""
    return engine.precision == "bf16" or (engine.precision == "auto" and device.type == "cuda")


class Engine:
    """Does the steps of a run in the fastest way that its device and model allow, and adds up what they tell."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: Config,
        *,
        steps: int,
        average: WeightAverage | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        device = next(model.parameters()).device
        self.cuda, self.size, self._say = device.type == "cuda", config.step_size, say
        own = config.engine
        self.model: nn.Module = Autocast(model) if in_half(own, device) else model
        self.optimizer, self.average, self.totals = optimizer, average, Totals(device)
        self.capture = self.cuda and own.capture != "off" and not _ranks.several()
        self._ways: list[tuple[nn.Module, Through]] = [(self.model, as_it_is)]  # the fastest last
        if own.compile == "on" or (own.compile == "auto" and self.cuda and steps >= _PAYS):
            self._ways.append((compiled(self.model), as_it_is))
            if not _ranks.several() and hasattr(torch._dynamo.config, _TRACES_GRADIENTS):
                self._ways.append((self.model, Compiled()))
            say("Steps are compiled: the first of each phase takes seconds on small networks, minutes on large ones.")
        self._graphs: dict[int, Captured] = {}
        self._seen: dict[int, int] = {}
        self._stream: Any = torch.cuda.Stream(device) if self.cuda else None

    def describe(self) -> dict[str, Any]:
        """Tell in which way steps were done, for a record."""
        precision = "bf16" if isinstance(self.model, Autocast) else "fp32"
        return {"precision": precision, "captured": bool(self._graphs), "compiled": len(self._ways) > 1}

    def step(self, objective: Objective, mix: Inputs, original: Inputs | None) -> None:
        """Do one step. Whole batches are captured after a few; the smaller last one of an epoch never is."""
        # Unreadable files may have left a hole in either batch.
        whole = len(mix.targets) == self.size and (original is None or len(original.targets) == self.size)
        if not (self.capture and whole):
            self._eager(objective, mix, original, whole=whole)
            return
        key = id(objective)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= _WARMUP:
            self._on_the_side(objective, mix, original)
            return
        if key not in self._graphs:
            self._try_capture(key, objective, mix, original)
            if not self.capture:
                self._eager(objective, mix, original, whole=whole)
                return
        self._graphs[key].replay(mix, original)

    def _eager(self, objective: Objective, mix: Inputs, original: Inputs | None, *, whole: bool) -> None:
        model, through = self._ways[-1 if whole else 0]
        try:
            report = training_step(model, self.optimizer, objective, mix, original, through)
        except _compiler_errors() as error:
            if model is self.model and through is as_it_is:
                raise
            self._ways.pop()
            left = "the model alone is" if len(self._ways) > 1 else "nothing is"
            self._say(f"Steps are not compiled as a whole, {left}: {_reason(error)}")
            self._eager(objective, mix, original, whole=whole)
            return
        if self.average is not None:
            self.average.update()
        self.totals.add(report, len(mix.targets), self.optimizer.found_inf)  # type: ignore[attr-defined]

    def _on_the_side(self, objective: Objective, mix: Inputs, original: Inputs | None) -> None:
        """Take a step on the stream of captures: what it leaves behind must not belong to the default stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._eager(objective, mix, original, whole=True)
        torch.cuda.current_stream().wait_stream(self._stream)

    def _try_capture(self, key: int, objective: Objective, mix: Inputs, original: Inputs | None) -> None:
        self._graphs.clear()  # the graph of the phase before, and its memory
        try:
            self._graphs[key] = Captured(
                lambda a, b: self._eager(objective, a, b, whole=True), mix, original, self._stream
            )
        except RuntimeError as error:
            self.capture = False
            self._say(f"Steps are not captured in a CUDA graph: {_reason(error)}")
            torch.cuda.synchronize()


class Captured:
    """One step in a CUDA graph, with the places where it reads its batch."""

    def __init__(
        self,
        step: Callable[[Inputs, Inputs | None], None],
        mix: Inputs,
        original: Inputs | None,
        stream: Any,
    ) -> None:
        self.mix, self.original = _copy(mix), None if original is None else _copy(original)
        self.graph = torch.cuda.CUDAGraph()
        # Only this thread must not wait: the one that pins a streaming loader's memory goes on.
        with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
            step(self.mix, self.original)

    def replay(self, mix: Inputs, original: Inputs | None) -> None:
        """Do the step with another batch of the same shape."""
        _fill(self.mix, mix)
        if self.original is not None and original is not None:
            _fill(self.original, original)
        self.graph.replay()


class Compiled:
    """Compiles functions with TorchInductor, each once: gradients are then one graph, with both backward passes."""

    def __init__(self) -> None:
        self._compiled: dict[Function, Function] = {}

    def __call__(self, function: Function) -> Function:
        """Return a function compiled; it is traced and built when it is first called."""
        if function not in self._compiled:
            # Each engine compiles a copy: torch counts how often code is compiled, and gives up after a few runs.
            copy = FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
            traced = torch.compile(copy, fullgraph=True, dynamic=False)
            self._compiled[function] = torch._dynamo.config.patch({_TRACES_GRADIENTS: True})(traced)
        return self._compiled[function]


def compiled(model: nn.Module) -> Any:
    """Compile a model alone, so that its graph may be differentiated twice: where gradients cannot be compiled."""
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    return torch.compile(model)


def _compiler_errors() -> tuple[type[Exception], ...]:
    """List what compilation raises; asked for when something was raised, since torch's compiler loads in a second."""
    known = torch._dynamo.exc
    return known.TorchDynamoException, getattr(known, "FailOnRecompileLimitHit", known.TorchDynamoException)


def _fields(inputs: Inputs) -> list[Tensor]:
    values = (getattr(inputs, field.name) for field in dataclasses.fields(inputs))
    return [value for value in values if isinstance(value, Tensor)]


def _copy(inputs: Inputs) -> Inputs:
    return dataclasses.replace(
        inputs,
        **{
            field.name: getattr(inputs, field.name).clone()
            for field in dataclasses.fields(inputs)
            if isinstance(getattr(inputs, field.name), Tensor)
        },
    )


def _fill(places: Inputs, inputs: Inputs) -> None:
    for place, value in zip(_fields(places), _fields(inputs), strict=True):
        place.copy_(value)


def _reason(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


class Totals:
    """Sums over the steps of an epoch, on the device until they are read."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(8, dtype=torch.float64, device=device)
        self._zero, self._one = torch.zeros((), device=device), torch.ones((), device=device)
        self._constrained = False
        self._pending: tuple[Tensor, Any] | None = None

    def reset(self, *, constrained: bool) -> None:
        """Start an epoch."""
        self._sums.zero_()
        self._constrained, self._pending = constrained, None

    def add(self, report: StepReport, size: int, frozen: Tensor) -> None:
        """Add one step."""
        r = report.rectification
        parts = [self._zero] * 3 if r is None else [r.conflict, r.cosine, r.skipped]
        # What one step tells fits into float32; the sums are kept in float64.
        values = [report.loss * size, report.correct, self._one * size, self._one, *parts, 1 - frozen]
        self._sums += torch.stack([value.float() for value in values])

    def state(self) -> Tensor:
        """Return the sums, for a checkpoint."""
        return self._sums.cpu()

    def restore(self, sums: Tensor) -> None:
        """Go on from the sums of a checkpoint."""
        self._sums.copy_(sums)

    def read(self) -> dict[str, Any]:
        """Return the means so far; this waits for the device."""
        return self._describe(self._sums.tolist())

    def peek(self) -> dict[str, Any] | None:
        """Return the means as they were when asked for last, if they have arrived: this never waits."""
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
