"""Compilation with TorchInductor: of the gradients as one graph, or of the model alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import nn

from shiftcal.training.step import Ops

_TRACES_GRADIENTS = "trace_autograd_ops"  # a setting of torch.compile's, from torch 2.11 on


def can_compile_gradients() -> bool:
    """Tell whether this torch can trace backward passes."""
    return hasattr(torch._dynamo.config, _TRACES_GRADIENTS)


def compiled_ops(ops: Ops) -> Ops:
    """Compile gradients, losses and both backward passes in one graph, and the rule in another."""
    return replace(ops, gradients=_compiled(ops.gradients), combine=_compiled(ops.combine))


def _compiled(function: Any) -> Callable[..., Any]:
    # Each engine compiles a copy: torch counts how often code is compiled, and gives up after a few runs.
    copy = FunctionType(
        function.__code__.replace(), function.__globals__, argdefs=function.__defaults__, closure=function.__closure__
    )
    traced = torch.compile(copy, fullgraph=True, dynamic=False)
    patched: Callable[..., Any] = torch._dynamo.config.patch({_TRACES_GRADIENTS: True})(traced)
    return patched


def compiled_model(model: nn.Module) -> Any:
    """Compile a model alone, so that its graph may be differentiated twice: where gradients cannot be compiled."""
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    return torch.compile(model)


def compiler_errors() -> tuple[type[Exception], ...]:
    """List what compilation raises; called when something was raised, since torch's compiler takes a second to load."""
    known = torch._dynamo.exc
    return known.TorchDynamoException, getattr(known, "FailOnRecompileLimitHit", known.TorchDynamoException)
