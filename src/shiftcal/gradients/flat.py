"""Gradients of one or two losses as one vector, and a vector back into `.grad`.

Each parameter's gradient lies in the vector in the order of its parameter's memory, so that nothing is transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from jaxtyping import Float
from torch import Tensor

from shiftcal._errors import wrong


@dataclass(frozen=True)
class Gradients:
    """The main loss's gradient and, where there is a constraint, that of the constrained parameters.

    A rule needs its two gradients as vectors. What no rule sees is left as autograd gave it: on a GPU, to flatten it
    takes 4 % of a small network's step.

    Attributes:
        vector: The main gradient of the first parameters, then the constraint's; nothing without a constraint.
        size: The length of the main gradient in the vector.
        used: Which parameters had a part in a loss; the others get no gradient.
        rest: The main gradient of the other parameters, one by one.
    """

    vector: Float[Tensor, " both"] | None
    size: int
    used: tuple[bool, ...]
    rest: tuple[Tensor | None, ...] = ()

    @property
    def flat(self) -> Float[Tensor, " both"]:
        """The vector, which has to hold everything."""
        if self.vector is None or self.rest:
            raise TypeError("Gradients should be flattened before they are added up or reduced.")
        return self.vector

    def flattened(self, parameters: Sequence[Tensor]) -> Gradients:
        """Return the same as one vector: the main gradient of all parameters, then the constraint's."""
        if not self.rest:
            return self
        others = parameters[len(parameters) - len(self.rest) :]
        pieces = _flattened(self.rest, others, widest(parameters))
        if self.vector is not None:
            pieces = [self.vector[: self.size], *pieces, self.vector[self.size :]]
        return replace(self, vector=torch.cat(pieces), size=sum(p.numel() for p in parameters), rest=())

    def add(self, other: Gradients, share: float = 1.0) -> Gradients:
        """Add a share of another batch's gradients, in place."""
        used = tuple(a or b for a, b in zip(self.used, other.used, strict=True))
        return replace(self, vector=self.flat.add_(other.flat, alpha=share), used=used)

    def scale(self, share: float) -> Gradients:
        """Scale both, in place."""
        return self if share == 1 else replace(self, vector=self.flat.mul_(share))


def constrained_first(
    parameters: Iterable[Tensor], constrained: Iterable[Tensor] | None = None
) -> tuple[list[Tensor], int]:
    """List the parameters that require a gradient, the constrained ones first, and count those; None means all."""
    # Once each: a tied weight may be listed twice.
    trainable = list({id(p): p for p in _tensors("parameters", parameters) if p.requires_grad}.values())
    if constrained is None:
        return trainable, len(trainable)
    chosen = {id(p) for p in _tensors("constrained", constrained) if p.requires_grad}
    first = [p for p in trainable if id(p) in chosen]
    if not first or len(first) < len(chosen):
        found = f"{len(chosen)} that require one, {len(first)} of them in `parameters`"
        raise wrong("constrained", "some of `parameters` that require a gradient", found)
    return first + [p for p in trainable if id(p) not in chosen], len(first)


def _tensors(name: str, given: Iterable[Tensor]) -> list[Tensor]:
    expected = "an iterable of tensors, such as `model.parameters()`"
    if isinstance(given, Tensor) or not isinstance(given, Iterable):
        raise wrong(name, expected, f"a single {type(given).__name__}")
    found = list(given)
    for one in found:
        if not isinstance(one, Tensor):
            raise wrong(name, expected, f"a {type(given).__name__} with a {type(one).__name__} in it")
    return found


def gradients_of_losses(
    main_loss: Float[Tensor, ""],
    constraint_loss: Float[Tensor, ""] | None,
    parameters: Sequence[Tensor],
    constrained: int | None = None,
) -> Gradients:
    """Differentiate a loss for all parameters and, where there is one, a constraint for the first `constrained`.

    None means all.
    """
    # Both graphs are kept until both gradients are out: they may share a forward pass.
    main = torch.autograd.grad(main_loss, parameters, retain_graph=constraint_loss is not None, allow_unused=True)
    if any(g is None for g in main):
        _check_not_hidden(main_loss)
    if constraint_loss is None:
        return Gradients(None, 0, tuple(g is not None for g in main), rest=tuple(main))
    if all(g is None for g in main):
        raise wrong("main_loss", "one that depends on some of `parameters`", "one that depends on none")
    second = torch.autograd.grad(constraint_loss, parameters[:constrained], allow_unused=True)
    if any(b is None and a is not None for a, b in zip(main, second, strict=False)):
        _check_not_hidden(constraint_loss)
    used = tuple(a is not None or b is not None for a, b in zip_longest(main, second))
    first, dtype = parameters[: len(second)], widest(parameters)
    pieces = _flattened(main[: len(second)], first, dtype) + _flattened(second, first, dtype)
    return Gradients(torch.cat(pieces), sum(p.numel() for p in first), used, rest=tuple(main[len(second) :]))


def _check_not_hidden(loss: Tensor) -> None:
    """Raise where parameters may seem unused because reentrant checkpoints hide them from autograd."""
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            expected = "free of reentrant activation checkpoints (set use_reentrant=False)"
            raise wrong("model", expected, "one, whose parameters would get no gradient")
        seen.add(node)
        nodes += [parent for parent, _ in node.next_functions]


def widest(parameters: Sequence[Tensor]) -> torch.dtype:
    """Return the type of a flat gradient: float32 at least, since a long dot product overflows in half precision."""
    dtype = torch.float32
    for p in parameters:
        dtype = torch.promote_types(dtype, p.dtype)
    return dtype


def write_gradients(
    vector: Float[Tensor, " n"] | None,
    parameters: Sequence[Tensor],
    used: Sequence[bool],
    rest: Sequence[Tensor | None] = (),
    *,
    accumulate: bool = False,
) -> None:
    """Cut a vector into gradients with the shape, type and memory order of their parameters, and set `.grad`.

    `rest` holds those of the last parameters, which need no cutting. With `accumulate` all are added to what is there,
    and none shares its memory with `rest`, as with `Tensor.backward`; otherwise they replace it.
    """
    count = len(parameters) - len(rest)
    pieces = [] if vector is None else split(vector, parameters[:count])
    given = [piece if wanted else None for piece, wanted in zip(pieces, used, strict=False)]
    for p, gradient in zip(parameters, given + _apart(rest, parameters[count:], copy=accumulate), strict=True):
        if gradient is None:
            p.grad = p.grad if accumulate else None
        elif accumulate and p.grad is not None:
            p.grad += gradient.to(p.dtype)
        else:
            p.grad = gradient.to(p.dtype)


def _apart(gradients: Sequence[Tensor | None], parameters: Sequence[Tensor], copy: bool) -> list[Tensor | None]:
    """Lay gradients out like their parameters; memory that autograd gave to two of them is copied.

    With `copy` all are: a hook may hold the tensor that autograd gave.
    """
    seen, found = set(), list[Tensor | None]()
    for p, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            found.append(None)
            continue
        memory = gradient.untyped_storage().data_ptr()
        found.append(laid_out(gradient.clone() if copy or memory in seen else gradient, p))
        seen.add(memory)
    return found


def split(vector: Float[Tensor, " n"], parameters: Sequence[Tensor]) -> list[Tensor]:
    """View the pieces of a vector as tensors with the shape and memory order of the parameters."""
    pieces = vector.split([p.numel() for p in parameters])
    return [_shaped(piece, p) for piece, p in zip(pieces, parameters, strict=True)]


def _flattened(parts: Sequence[Tensor | None], parameters: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    pieces = [torch.zeros_like(p) if g is None else laid_out(g, p) for g, p in zip(parts, parameters, strict=True)]
    return [piece.permute(_memory_order(piece)).reshape(-1).to(dtype) for piece in pieces]


def laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient with the strides of its parameter, which it mostly has."""
    axes = zip(gradient.stride(), parameter.stride(), parameter.shape, strict=True)
    if all(own == other for own, other, size in axes if size > 1):
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)


def _memory_order(tensor: Tensor) -> list[int]:
    strides = tensor.stride()
    return sorted(range(tensor.ndim), key=lambda axis: (-strides[axis], axis))


def _shaped(piece: Tensor, parameter: Tensor) -> Tensor:
    order = _memory_order(parameter)
    inverse = sorted(range(parameter.ndim), key=order.__getitem__)
    return piece.view([parameter.shape[axis] for axis in order]).permute(inverse)
