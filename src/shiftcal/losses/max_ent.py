"""MaxEnt loss: focal loss with the moments that a maximum-entropy distribution would have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.losses._inputs import check_gamma, check_inputs, focal_term, reduce

Constraint = Literal["mean", "variance", "both"]


def max_ent(
    logits: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"],
    *,
    constraint: Constraint = "mean",
    gamma: float = 1.0,
    class_prior: Sequence[float] | None = None,
    reduction: str = "mean",
) -> Float[Tensor, "*batch"]:
    """Compute the MaxEnt loss, focal loss + λ_y·(|μ − μ_global| + |μ − y|) (Neo et al., AAAI 2024).

    μ = Σ_k k·p_k is the mean class index of a prediction, μ_global that of the prior, and λ_y solves
    Σ_x x·e^(−λx) = e·(μ_global + y)/2. "variance" does the same with second moments, v = Σ_k k²·p_k and y²; "both" adds
    a term for the mean and one for the spread around it, whose two multipliers are solved together; of two classes the
    mean tells the spread, and "both" is refused.

    Args:
        logits: Scores before the softmax.
        targets: Class indices.
        constraint: Which moments: "mean", "variance" or "both".
        gamma: Focusing parameter of the focal term.
        class_prior: Share of each class in training; equal by default.
        reduction: "none", "mean" or "sum".

    Example:
        >>> logits = torch.zeros(1, 4)
        >>> round(max_ent(logits, torch.tensor([0]), gamma=0.0).item(), 4)  # log 4 + 0.4934 · (0 + 1.5)
        2.1264
    """
    logits = check_inputs(logits, targets)
    check_gamma(gamma)
    if constraint not in ("mean", "variance", "both"):
        raise wrong("constraint", "'mean', 'variance' or 'both'", repr(constraint))
    if constraint == "both" and logits.shape[1] == 2:
        raise wrong("constraint", "'mean' or 'variance' for two classes, whose mean tells their spread", "'both'")
    prior = _check_prior(class_prior, logits.shape[1])
    log_p = logits.log_softmax(-1)
    p, y = log_p.exp(), targets.long()
    k = torch.arange(logits.shape[1], dtype=p.dtype, device=p.device)
    table = _on_device(prior, constraint, p.dtype, p.device)[y]
    value = focal_term(log_p.gather(1, y[:, None]).squeeze(1), gamma)
    if constraint != "variance":
        mean = (p * k).sum(1)
        value = value + table[:, 0] * ((mean - _moment(prior, 1)).abs() + (mean - y).abs())
    if constraint == "variance":
        second = (p * k**2).sum(1)
        value = value + table[:, 0] * ((second - _moment(prior, 2)).abs() + (second - y.to(p.dtype) ** 2).abs())
    if constraint == "both":
        spread = (p * (k - mean[:, None]) ** 2).sum(1)
        of_prior = _moment(prior, 2) - _moment(prior, 1) ** 2
        value = value + table[:, 1] * ((spread - of_prior).abs() + spread)  # a single class has no spread
    return reduce(value, reduction)


def _check_prior(prior: Sequence[float] | None, classes: int) -> tuple[float, ...]:
    if prior is None:
        return (1 / classes,) * classes
    if len(prior) != classes or min(prior) < 0 or not abs(sum(prior) - 1) <= 1e-6:
        raise wrong("class_prior", f"{classes} shares that sum to 1", list(prior))
    return tuple(prior)


def _moment(prior: tuple[float, ...], power: int) -> float:
    return float(sum(share * k**power for k, share in enumerate(prior)))


_SOLVED: dict[tuple[object, ...], Tensor] = {}


def _on_device(
    prior: tuple[float, ...], constraint: Constraint, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "classes multipliers"]:
    """Keep each table of multipliers on its device: solving and copying it in every step would make the device wait."""
    key = (prior, constraint, dtype, device)
    if key not in _SOLVED:
        _SOLVED[key] = torch.tensor(multipliers(prior, constraint), dtype=dtype, device=device)
    return _SOLVED[key]


# What torch.compiler.assume_constant_result does; that loads the compiler, which takes everybody a second at import.
_on_device._dynamo_marked_constant = True  # type: ignore[attr-defined]


def multipliers(prior: tuple[float, ...], constraint: Constraint) -> tuple[tuple[float, ...], ...]:
    """Solve for each class's multipliers, in float64."""
    classes = range(len(prior))
    if constraint == "mean":
        mean = _moment(prior, 1)
        return tuple((_solve_one(lambda x: x, math.e * (mean + y) / 2, len(prior)),) for y in classes)
    if constraint == "variance":
        second = _moment(prior, 2)
        return tuple((_solve_one(lambda x: x * x, math.e * (second + y * y) / 2, len(prior)),) for y in classes)
    return tuple(_solve_both(prior, y) for y in classes)


def _solve_one(statistic: Callable[[int], int], target: float, classes: int) -> float:
    """Solve Σ_x s(x)·e^(−λ·s(x)) = target for λ by bisection: the sum falls as λ rises."""
    values = [statistic(x) for x in range(classes)]

    def excess(lam: float) -> float:
        return sum(s * math.exp(min(-lam * s, 700.0)) for s in values) - target

    low, high = -1.0, 1.0
    while excess(low) < 0:
        low *= 2
    while excess(high) > 0:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return (low + high) / 2


def _solve_both(prior: tuple[float, ...], y: int) -> tuple[float, float]:
    """Solve for λ₁, λ₂ with exponent −λ₁x − λ₂(x−m)² and targets e·m, e·½[Σ prior·(k−m)² + (y−m)²], by damped Newton.

    The system is the gradient of the convex function Σ_x e^(−λ₁x − λ₂(x−m)²) + λ₁·target₁ + λ₂·target₂.
    """
    # Deviation from the authors' code, which sums over all classes' m where this class's belongs.
    x = torch.arange(len(prior), dtype=torch.float64)
    m = (_moment(prior, 1) + y) / 2
    features = torch.stack([x, (x - m) ** 2])
    spread = (torch.tensor(prior, dtype=torch.float64) @ (x - m) ** 2 + (y - m) ** 2) / 2
    target = math.e * torch.stack([torch.tensor(m, dtype=torch.float64), spread])

    def objective(lam: Tensor) -> Tensor:
        return torch.exp(-lam @ features).sum() + lam @ target

    def residual(lam: Tensor) -> Tensor:
        return target - features @ torch.exp(-lam @ features)

    lam = torch.zeros(2, dtype=torch.float64)
    for _ in range(100):
        gradient = residual(lam)
        if gradient.norm() < 1e-10 * target.norm():
            return float(lam[0]), float(lam[1])
        step = torch.linalg.solve((features * torch.exp(-lam @ features)) @ features.T, -gradient)
        # Far away a good step lowers the objective; near the solution only the residual still changes in float64.
        while objective(lam + step) > objective(lam) and residual(lam + step).norm() > gradient.norm():
            step = step / 2
        lam = lam + step
    raise wrong(
        "class_prior", "one for which the multipliers of 'both' exist", f"{len(prior)} classes, none for class {y}"
    )
