"""Gradient rules: two flat gradients become one. Pure functions; nothing is read back from the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from shiftcal._errors import unknown, wrong
from shiftcal._tensors import at_least_float32

Rule = Callable[[Tensor, Tensor], Tensor]
EPSILON = 1e-12


@dataclass(frozen=True)
class Rectification:
    """What happened to one step's gradient, as scalars on the gradients' device (reading one waits for the device).

    Norms and cosine are those of the constrained parameters' gradients. Where several rules were applied in one step,
    they are means, and `conflict` and `skipped` are shares.
    """

    conflict: Bool[Tensor, ""] | Float[Tensor, ""]
    cosine: Float[Tensor, ""]
    main_norm: Float[Tensor, ""]
    constraint_norm: Float[Tensor, ""]
    skipped: Bool[Tensor, ""] | Float[Tensor, ""]


def _in_float32(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Let a rule see float32 at least: the square of a norm of 256 overflows in half precision."""

    @wraps(rule)
    def widened(main: Tensor, constraint: Tensor, **options: float) -> Tensor:
        _check_gradients(main, constraint)
        return rule(at_least_float32(main), at_least_float32(constraint), **options).to(main.dtype)

    return widened


@_in_float32
def rectify(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"], *, eps: float = EPSILON) -> Float[Tensor, " n"]:
    """Project the main gradient onto the half-space that does not worsen the constraint (FGR paper, equation 8).

    With d = main · constraint: main where d ≥ 0, else main − d / (‖constraint‖² + ε) · constraint, which is the
    nearest direction g with g · constraint ≥ 0. A zero or non-finite constraint leaves main as it is.
    Nothing is read back from the device.

    Example:
        >>> rectify(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]))
        tensor([1., 0.])
    """
    if not eps >= 0:
        raise wrong("eps", "at least 0", eps)
    squared_norm = constraint.dot(constraint)
    return project(main, constraint.where(usable(squared_norm), 0.0), main.dot(constraint), squared_norm, eps)


def project(main: Tensor, constraint: Tensor, d: Tensor, squared_norm: Tensor, eps: float = EPSILON) -> Tensor:
    """Project with the products d = main · constraint and ‖constraint‖² known; the constraint has to be finite."""
    conflict = (d < 0) & usable(squared_norm)
    return torch.addcmul(main, constraint, torch.where(conflict, -d / (squared_norm + eps), 0.0))


@_in_float32
def add(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"], *, weight: float = 1.0) -> Float[Tensor, " n"]:
    """Add the constraint's gradient with a weight, the "Weighted Sum" ablation of the FGR paper (table 3).

    Example:
        >>> add(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]), weight=0.5)
        tensor([1., 0.])
    """
    if not math.isfinite(weight):
        raise wrong("weight", "finite", weight)
    return (main + weight * constraint).where(usable(constraint.dot(constraint)), main)


def ignore(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return the main gradient: the constraint is measured, never applied (the FGR paper's "Filter Only").

    Example:
        >>> ignore(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]))
        tensor([ 1., -1.])
    """
    _check_gradients(main, constraint)
    return main.clone()


@_in_float32
def pcgrad(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Add both gradients after projecting each off the other where they conflict (PCGrad; Yu et al., NeurIPS 2020).

    It is rectify(main, constraint) + rectify(constraint, main): symmetric, where the FGR paper's rule is not.

    Example:
        >>> pcgrad(torch.tensor([1.0, -1.0]), torch.tensor([0.0, 2.0]))
        tensor([2., 1.])
    """
    both = rectify(main, constraint) + rectify(constraint, main)
    return both.where(usable(constraint.dot(constraint)), main)


@_in_float32
def cagrad(main: Float[Tensor, " n"], constraint: Float[Tensor, " n"], *, c: float = 0.5) -> Float[Tensor, " n"]:
    """Raise the worse objective's gain within a ball around the mean gradient (CAGrad; Liu et al., NeurIPS 2021).

    With g₀ = (g₁ + g₂)/2 and g_w = w·g₁ + (1−w)·g₂ it is g₀ + c·‖g₀‖/‖g_w‖ · g_w, where w in [0, 1] minimises
    g_w·g₀ + c·‖g₀‖·‖g_w‖. For two objectives that minimum has a closed form.

    Example:
        >>> cagrad(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
        tensor([0.7500, 0.7500])
    """
    if not 0 <= c < 1:
        raise wrong("c", "in [0, 1)", c)
    # Scalars in float64: the discriminant below is a difference of nearly equal products.
    a, d, b = (x.dot(y).double() for x, y in ((main, main), (main, constraint), (constraint, constraint)))
    s = c * ((a + 2 * d + b) / 4).clamp_min(0).sqrt()  # c·‖g₀‖
    w = _cagrad_weight(a, d, b, s)
    norm = (w**2 * a + 2 * w * (1 - w) * d + (1 - w) ** 2 * b).clamp_min(0).sqrt()  # ‖g_w‖
    ratio = torch.where(norm > 0, s / norm, 0.0)
    final = (0.5 + ratio * w).to(main.dtype) * main + (0.5 + ratio * (1 - w)).to(main.dtype) * constraint
    return final.where(usable(b), main)


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


def combine(
    gradients: Float[Tensor, " both"] | None,
    size: int,
    rule: Rule,
    momentum: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Float[Tensor, " n"] | None, Rectification | None]:
    """Apply a rule to the main gradient, the first `size` entries, and the constraint's, which follow it.

    A constraint's gradient that is shorter belongs to the first entries of the main one; the rest stays. Without one
    the main gradient is the result. `momentum` turns the constraint's gradient into its running mean.
    """
    if gradients is None or len(gradients) == size:
        return gradients, None
    whole, constraint = gradients[:size], gradients[size:]
    main, rest = whole[: len(constraint)], whole[len(constraint) :]
    squared_norm = constraint.dot(constraint)
    constraint_norm, good = squared_norm.sqrt(), usable(squared_norm)
    if momentum is not None:
        constraint = momentum(constraint)
        squared_norm = constraint.dot(constraint)
    # Without a usable gradient of this step the constraint is zero, which every rule leaves out.
    constraint, squared_norm = constraint.where(good, 0.0), squared_norm.where(good, 0.0)
    d = main.dot(constraint)
    # Millions of entries are gone through as rarely as can be: the paper's rule takes the products that are there.
    final = project(main, constraint, d, squared_norm) if rule is rectify else rule(main, constraint)
    if not isinstance(final, Tensor) or final.shape != main.shape:
        found = list(final.shape) if isinstance(final, Tensor) else type(final).__name__
        raise wrong("rule", f"a function that returns {list(main.shape)}, as `main`", found)
    report = _report(d, main.dot(main).sqrt(), squared_norm, constraint_norm)
    return (torch.cat([final, rest]) if len(rest) else final), report


def _report(d: Tensor, main_norm: Tensor, squared_norm: Tensor, constraint_norm: Tensor) -> Rectification:
    good = usable(squared_norm)
    cosine = d / (main_norm * squared_norm.sqrt())
    return Rectification(
        conflict=(d < 0) & good,
        cosine=cosine.where(good & cosine.isfinite(), 0.0),
        main_norm=main_norm,
        constraint_norm=constraint_norm,
        skipped=~good,
    )


def find_rule(rule: str | Rule) -> Rule:
    """Look a rule up by name; a function is one already."""
    if callable(rule):
        return rule
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    return RULES[rule]


def usable(norm: Tensor) -> Tensor:
    """Tell by its norm or squared norm whether a gradient gives a direction: neither zero nor non-finite."""
    return (norm > 0) & (norm < math.inf)  # false for NaN


def _check_gradients(main: Tensor, constraint: Tensor) -> None:
    if main.ndim != 1 or len(main) == 0 or not main.is_floating_point():
        raise wrong("main", "a flat floating-point gradient", f"{main.dtype} {list(main.shape)}")
    if constraint.shape != main.shape or constraint.dtype != main.dtype:
        raise wrong(
            "constraint", f"{main.dtype} {list(main.shape)}, as `main`", f"{constraint.dtype} {list(constraint.shape)}"
        )
