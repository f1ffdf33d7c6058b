"""Gradient rectification: two gradients become one that does not worsen the constraint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from shiftcal._checks import unknown, wrong

Rule = Callable[[Tensor, Tensor], Tensor]
Function = Callable[..., Any]
Through = Callable[[Function], Function]  # turns a function into one that does the same, say by compiling it


def as_it_is(function: Function) -> Function:
    """Return the function itself."""
    return function


def rectify(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"], *, eps: float = 1e-12) -> Float[Tensor, " n"]:
    """Project the main gradient onto the half-space that does not worsen the constraint (FGR paper, equation 8).

    With d = main · constraint: main where d ≥ 0, else main − d / (‖constraint‖² + ε) · constraint, which is the
    nearest direction g with g · constraint ≥ 0. A zero or non-finite constraint leaves main as it is.
    Nothing is read back from the device.

    Example:
        >>> rectify(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]))
        tensor([1., 0.])
    """
    _check_gradients(main, constraint)
    if not eps >= 0:
        raise wrong("eps", "at least 0", eps)
    squared_norm = constraint.dot(constraint)
    usable = _usable(squared_norm)
    return _project(main, constraint.where(usable, 0.0), main.dot(constraint), squared_norm, eps)


def _project(main: Tensor, constraint: Tensor, d: Tensor, squared_norm: Tensor, eps: float) -> Tensor:
    """Project with the products d = main · constraint and ‖constraint‖² known; the constraint has to be finite."""
    conflict = (d < 0) & _usable(squared_norm)
    return torch.addcmul(main, constraint, torch.where(conflict, -d / (squared_norm + eps), 0.0))


def add(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"], *, weight: float = 1.0) -> Float[Tensor, " n"]:
    """Add the constraint's gradient with a weight, the "Weighted Sum" ablation of the FGR paper (table 3).

    Example:
        >>> add(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]), weight=0.5)
        tensor([1., 0.])
    """
    _check_gradients(main, constraint)
    if not math.isfinite(weight):
        raise wrong("weight", "finite", weight)
    return (main + weight * constraint).where(_usable(constraint.dot(constraint)), main)


def ignore(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the main gradient: the constraint is measured, never applied (the FGR paper's "Filter Only").

    Example:
        >>> ignore(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]))
        tensor([ 1., -1.])
    """
    _check_gradients(main, constraint)
    return main.clone()


def pcgrad(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Add both gradients after projecting each off the other where they conflict (PCGrad; Yu et al., NeurIPS 2020).

    It is rectify(main, constraint) + rectify(constraint, main): symmetric, where the FGR paper's rule is not.

    Example:
        >>> pcgrad(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]))
        tensor([2., 1.])
    """
    _check_gradients(main, constraint)
    usable = _usable(constraint.dot(constraint))
    return (rectify(main, constraint) + rectify(constraint, main)).where(usable, main)


def cagrad(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"], *, c: float = 0.5) -> Float[Tensor, " n"]:
    """Raise the worse objective's gain within a ball around the mean gradient (CAGrad; Liu et al., NeurIPS 2021).

    With g₀ = (g₁ + g₂)/2 and g_w = w·g₁ + (1−w)·g₂ it is g₀ + c·‖g₀‖/‖g_w‖ · g_w, where w in [0, 1] minimises
    g_w·g₀ + c·‖g₀‖·‖g_w‖. For two objectives that minimum has a closed form.

    Example:
        >>> cagrad(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
        tensor([0.7500, 0.7500])
    """
    _check_gradients(main, constraint)
    if not 0 <= c < 1:
        raise wrong("c", "in [0, 1)", c)
    # Scalars in float64: the discriminant below is a difference of nearly equal products.
    a, d, b = (x.dot(y).double() for x, y in ((main, main), (main, constraint), (constraint, constraint)))
    s = c * ((a + 2 * d + b) / 4).clamp_min(0).sqrt()  # c·‖g₀‖
    w = _cagrad_weight(a, d, b, s)
    norm = (w**2 * a + 2 * w * (1 - w) * d + (1 - w) ** 2 * b).clamp_min(0).sqrt()  # ‖g_w‖
    ratio = torch.where(norm > 0, s / norm, 0.0)
    final = (0.5 + ratio * w).to(main.dtype) * main + (0.5 + ratio * (1 - w)).to(main.dtype) * constraint
    return final.where(_usable(b), main)


def _cagrad_weight(a: Tensor, d: Tensor, b: Tensor, s: Tensor) -> Tensor:
    """Minimise g_w·g₀ + s·‖g_w‖ over w in [0, 1], from the Gram matrix [[a, d], [d, b]].

    With ‖g_w‖² = q(w) = αw² + 2βw + b and slope p of the linear part, the derivative vanishes where
    p·√q = −s·(αw + β); squared, q = s²Δ/(s²α − p²) with Δ = ab − d².
    """
    alpha, beta, p = a - 2 * d + b, d - b, (a - b) / 2
    delta, free = (a * b - d**2).clamp_min(0), s**2 * alpha - p**2
    q = s**2 * delta / free.where(free > 0, 1.0)
    inside = (-p * q.sqrt() / s.where(s > 0, 1.0) - beta) / alpha.where(alpha > 0, 1.0)
    # Where the slope never vanishes, the minimum is at an end.
    return torch.where((free > 0) & (alpha > 0), inside.clamp(0, 1), (p <= 0).to(a.dtype))


RULES: dict[str, Rule] = {"rectify": rectify, "sum": add, "none": ignore, "pcgrad": pcgrad, "cagrad": cagrad}


@dataclass(frozen=True)
class Rectification:
    """What happened to one step's gradient, as scalars on the gradients' device (reading one waits for the device)."""

    conflict: Bool[Tensor, ""]
    cosine: Float[Tensor, ""]
    main_norm: Float[Tensor, ""]
    constraint_norm: Float[Tensor, ""]
    skipped: Bool[Tensor, ""]


class ConstraintMomentum:
    """Carry the running mean of the constraint's gradient, m ← β·m + (1 − β)·g, from step to step.

    The dot product and the projection then use m instead of the gradient of one batch, which is mostly noise.
    It starts at zero; the projection does not depend on its scale. A non-finite gradient leaves it as it is.

    Example:
        >>> state = ConstraintMomentum(beta=0.5)
        >>> state.update(torch.tensor([2.0, 0.0]))
        tensor([1., 0.])
    """

    def __init__(self, beta: float) -> None:
        if not 0 <= beta < 1:
            raise wrong("beta", "in [0, 1)", beta)
        self.beta = beta
        self.mean: Tensor | None = None

    def __repr__(self) -> str:
        return f"ConstraintMomentum(beta={self.beta})"

    def update(self, gradient: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Take in one gradient and return the running mean."""
        if self.mean is None:
            self.mean = torch.zeros_like(gradient)
        if self.mean.shape != gradient.shape:
            raise wrong("gradient", f"of length {len(self.mean)}, as before", len(gradient))
        finite = gradient.dot(gradient).isfinite()
        # In place, so that a captured step finds it where it left it.
        return self.mean.copy_((self.beta * self.mean + (1 - self.beta) * gradient).where(finite, self.mean))

    def state_dict(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs."""
        return {} if self.mean is None else {"mean": self.mean.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up a checkpoint's state."""
        self.mean = state["mean"].clone() if "mean" in state else None


def rectified_backward(
    main_loss: Float[Tensor, ""],
    constraint_loss: Float[Tensor, ""],
    parameters: Iterable[Tensor],
    *,
    rule: str | Rule = "rectify",
    state: ConstraintMomentum | None = None,
    constrained: Iterable[Tensor] | None = None,
) -> Rectification:
    """Write into `.grad` the one gradient that a rule makes of two losses (FGR paper, algorithm 1, lines 16–22).

    Call it where you would call `main_loss.backward()`. The gradients of all parameters are one long vector here:
    there is one dot product, not one per layer. Gradients are overwritten, not accumulated.

    Args:
        main_loss: The loss to descend.
        constraint_loss: The loss that must not rise; its graph may share the forward pass of the main loss.
        parameters: What to differentiate for, for example `model.parameters()`. Frozen ones are left out.
        rule: A name in `RULES`, or a function of two flat gradients that returns one.
        state: Running mean of the constraint's gradient; None uses each step's own.
        constrained: The parameters whose gradient the rule changes, all by default. The others keep the main gradient,
            and the constraint's backward pass goes no further than it must.

    Returns:
        Scalars that tell whether the two conflicted and how.

    Example:
        >>> w = torch.tensor([1.0, -1.0], requires_grad=True)
        >>> report = rectified_backward((w * torch.tensor([1.0, -1.0])).sum(), 2 * w[1], [w])
        >>> w.grad, report.conflict
        (tensor([1., 0.]), tensor(True))
    """
    trainable = [p for p in parameters if p.requires_grad]
    if not trainable:
        raise wrong("parameters", "at least one tensor that requires a gradient", "none")
    trainable, count = constrained_first(trainable, constrained)
    pair = gradient_pair(main_loss, constraint_loss, trainable, count)
    return apply_gradients(pair, trainable, rule=rule, state=state)


def constrained_first(trainable: Iterable[Tensor], constrained: Iterable[Tensor] | None) -> tuple[list[Tensor], int]:
    """Put the constrained parameters before the others, and count them."""
    trainable = list(trainable)
    if constrained is None:
        return trainable, len(trainable)
    chosen = {id(p) for p in constrained if p.requires_grad}
    first = [p for p in trainable if id(p) in chosen]
    if not first or len(first) < len(chosen):
        raise wrong("constrained", "some of `parameters` that require a gradient", f"{len(first)} of {len(chosen)}")
    return first + [p for p in trainable if id(p) not in chosen], len(first)


@dataclass(frozen=True)
class GradientPair:
    """The gradients of two losses, each as one vector, and which parameters had a part in them.

    They lie in one tensor, so that processes can add theirs up in one go. The constraint's may be shorter: then it
    belongs to the first entries of the main one.
    """

    vectors: Float[Tensor, " both"]
    size: int
    used: tuple[bool, ...]

    @property
    def main(self) -> Float[Tensor, " n"]:
        """The main loss's gradient."""
        return self.vectors[: self.size]

    @property
    def constraint(self) -> Float[Tensor, " m"]:
        """The constraint's gradient."""
        return self.vectors[self.size :]

    def times(self, share: float) -> GradientPair:
        """Scale both, in place."""
        return self if share == 1 else replace(self, vectors=self.vectors.mul_(share))

    def combined(self, rule: str | Rule) -> GradientPair:
        """Put what a rule makes of both in the place of the first."""
        main, constraint = self.main, self.constraint
        constraint = constraint.where(_usable(constraint.dot(constraint)), 0.0)
        head = _find_rule(rule)(main[: len(constraint)], constraint)
        return replace(self, vectors=torch.cat([head, main[len(constraint) :], constraint]))

    def plus(self, other: GradientPair, share: float) -> GradientPair:
        """Add a share of another pair, in place."""
        used = tuple(a or b for a, b in zip(self.used, other.used, strict=True))
        return replace(self, vectors=self.vectors.add_(other.vectors, alpha=share), used=used)


def gradient_pair(
    main_loss: Tensor, constraint_loss: Tensor, trainable: Sequence[Tensor], constrained: int
) -> GradientPair:
    """Return the gradients of two losses, which may be averaged or summed before a rule sees them.

    The constraint's is that of the first `constrained` parameters.
    """
    for name, loss in (("main_loss", main_loss), ("constraint_loss", constraint_loss)):
        if loss.ndim != 0 or not loss.requires_grad:
            raise wrong(name, "a scalar that requires a gradient", f"shape {list(loss.shape)}, {loss.requires_grad=!s}")
    # Both graphs are kept until both gradients are out: they may share a forward pass.
    main_parts = torch.autograd.grad(main_loss, trainable, retain_graph=True, allow_unused=True)
    constraint_parts = torch.autograd.grad(constraint_loss, trainable[:constrained], allow_unused=True)
    used = tuple(a is not None or b is not None for a, b in zip_longest(main_parts, constraint_parts))
    kind = torch.float32  # at least: a dot product over millions of entries would overflow in half precision
    for p in trainable:
        kind = torch.promote_types(kind, p.dtype)
    pieces = _flattened(main_parts, trainable, kind) + _flattened(constraint_parts, trainable[:constrained], kind)
    return GradientPair(torch.cat(pieces), sum(p.numel() for p in trainable), used)


def apply_gradients(
    pair: GradientPair,
    trainable: Sequence[Tensor],
    *,
    rule: str | Rule = "rectify",
    state: ConstraintMomentum | None = None,
    through: Through = as_it_is,
) -> Rectification:
    """Write into `.grad` what a rule makes of a pair of gradients, see `rectified_backward`; `through` may compile."""
    report: Rectification
    combined, report = through(_combined)(pair.main, pair.constraint, _find_rule(rule), state)
    for p, gradient, used in zip(trainable, _split(combined, trainable), pair.used, strict=True):
        p.grad = gradient if used else None
    return report


def _combined(
    whole: Tensor, constraint: Tensor, combine: Rule, state: ConstraintMomentum | None
) -> tuple[Tensor, Rectification]:
    main, rest = whole[: len(constraint)], whole[len(constraint) :]
    squared_norm = constraint.dot(constraint)
    usable, constraint_norm = _usable(squared_norm), squared_norm.sqrt()
    if state is not None:
        constraint = state.update(constraint)
        squared_norm = constraint.dot(constraint)
    # Without a usable gradient of this step the constraint is zero, which every rule leaves out.
    constraint, squared_norm = constraint.where(usable, 0.0), squared_norm.where(usable, 0.0)
    d = main.dot(constraint)
    # Millions of entries are gone through as rarely as can be: the paper's rule takes the products that are there.
    combined = _project(main, constraint, d, squared_norm, 1e-12) if combine is rectify else combine(main, constraint)
    combined = torch.cat([combined, rest]) if len(rest) else combined
    return combined, _report(d, main.dot(main).sqrt(), squared_norm, constraint_norm)


def _report(d: Tensor, main_norm: Tensor, squared_norm: Tensor, constraint_norm: Tensor) -> Rectification:
    usable = _usable(squared_norm)
    cosine = d / (main_norm * squared_norm.sqrt())
    return Rectification(
        conflict=(d < 0) & usable,
        cosine=cosine.where(usable & cosine.isfinite(), 0.0),
        main_norm=main_norm,
        constraint_norm=constraint_norm,
        skipped=~usable,
    )


def _usable(norm: Tensor) -> Tensor:
    """Tell by its norm or squared norm whether a gradient gives a direction: neither zero nor non-finite."""
    return norm.isfinite() & (norm > 0)


def _flattened(parts: Iterable[Tensor | None], parameters: Sequence[Tensor], kind: torch.dtype) -> list[Tensor]:
    """View gradients as vectors, each in its parameter's order of memory: then nothing is transposed."""
    pieces = [torch.zeros_like(p) if g is None else laid_out(g, p) for g, p in zip(parts, parameters, strict=True)]
    return [_in_memory_order(piece).to(kind) for piece in pieces]


def laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient with the strides of its parameter, which it mostly has."""
    axes = zip(gradient.stride(), parameter.stride(), parameter.shape, strict=True)
    if all(own == other for own, other, size in axes if size > 1):
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)


def _in_memory_order(tensor: Tensor) -> Tensor:
    """View a tensor as a vector in the order of its memory; one with gaps or overlaps is copied."""
    return tensor.permute(_memory_order(tensor)).reshape(-1)


def _memory_order(tensor: Tensor) -> list[int]:
    strides = tensor.stride()
    return sorted(range(tensor.ndim), key=lambda axis: (-strides[axis], axis))


def _split(flat: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Cut the vector into gradients with the shape, type and order of memory of their parameters."""
    pieces = flat.split([p.numel() for p in parameters])
    return [_shaped(g, p).to(p.dtype) for g, p in zip(pieces, parameters, strict=True)]


def _shaped(piece: Tensor, parameter: Tensor) -> Tensor:
    order = _memory_order(parameter)
    inverse = sorted(range(parameter.ndim), key=order.__getitem__)
    return piece.view([parameter.shape[axis] for axis in order]).permute(inverse)


def _find_rule(rule: str | Rule) -> Rule:
    if callable(rule):
        return rule
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    return RULES[rule]


def _check_gradients(main: Tensor, constraint: Tensor) -> None:
    if main.ndim != 1 or len(main) == 0 or not main.is_floating_point():
        raise wrong("main", "a flat floating-point gradient", f"{main.dtype} {list(main.shape)}")
    if constraint.shape != main.shape or constraint.dtype != main.dtype:
        raise wrong(
            "constraint", f"{main.dtype} {list(main.shape)}, as `main`", f"{constraint.dtype} {list(constraint.shape)}"
        )
