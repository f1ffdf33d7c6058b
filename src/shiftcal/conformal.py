"""Conformal prediction sets: classes that together hold the true one as often as asked, fitted on held-out data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count, wrong
from shiftcal._tensors import check_indices, check_range, check_tensor
from shiftcal.metrics._inputs import check_inputs

# SplitMix64's factors, as signed numbers, and how many of the largest probabilities are mixed.
_FIRST, _SECOND, _FEW = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64, 8


@dataclass(frozen=True)
class ConformalSets:
    """Sets of classes that hold the true class with probability `level`, on data like those it was fitted on.

    A class's score is the probability of all classes above it plus a random share u of its own: adaptive prediction
    sets, APS (Romano et al., NeurIPS 2020, equation 7). RAPS adds λ for each rank beyond `k_reg`, which keeps sets
    small (Angelopoulos et al., ICLR 2021, equation 4). A set has the classes whose score is at most the
    ⌈(n+1)·level⌉-th smallest of the true classes' scores on n held-out samples. The first class is never left out.

    Attributes:
        threshold: The largest score of a class in a set.
        kind: "aps" or "raps".
        penalty: RAPS's λ.
        k_reg: RAPS's ranks without a penalty.
        seed: Seed of u, which also depends on the sample's probabilities, and on no other sample.
    """

    threshold: float
    kind: Literal["aps", "raps"] = "aps"
    penalty: float = 0.01
    k_reg: int = 1
    seed: int = 0

    @staticmethod
    @takes_arrays
    def fit(
        probabilities: Float[Tensor, "n classes"],
        targets: Int[Tensor, " n"],
        *,
        level: float = 0.9,
        kind: Literal["aps", "raps"] = "aps",
        penalty: float = 0.01,
        k_reg: int = 1,
        seed: int = 0,
    ) -> ConformalSets:
        """Fit on held-out samples.

        Example:
            >>> p = torch.tensor([[0.9, 0.1]] * 90 + [[0.1, 0.9]] * 10)
            >>> sets = ConformalSets.fit(p, torch.zeros(100, dtype=torch.int64), level=0.8)
            >>> sets(p).float().mean(0)[0] > 0.8
            tensor(True)
        """
        check_inputs(probabilities, targets)
        if not 0 < level < 1:
            raise wrong("level", "in (0, 1)", level)
        if kind not in ("aps", "raps"):
            raise wrong("kind", "'aps' or 'raps'", repr(kind))
        if not 0 <= penalty < math.inf:
            raise wrong("penalty", "at least 0, and finite", penalty)
        check_count("k_reg", k_reg, least=0)
        sets = ConformalSets(math.inf, kind, penalty, k_reg, seed)
        own = sets._scores(probabilities).gather(1, targets.long()[:, None]).squeeze(1)
        place = math.ceil((len(own) + 1) * level - 1e-9)
        threshold = float(own.sort().values[place - 1]) if place <= len(own) else math.inf
        return ConformalSets(threshold, kind, penalty, k_reg, seed)

    @takes_arrays
    def __call__(self, probabilities: Float[Tensor, "n classes"]) -> Bool[Tensor, "n classes"]:
        """Tell for each sample which classes are in its set."""
        check_inputs(probabilities, probabilities.argmax(1))
        inside = self._scores(probabilities) <= self.threshold
        return inside.scatter(1, probabilities.argmax(1, keepdim=True), value=True)

    def _scores(self, probabilities: Tensor) -> Float[Tensor, "n classes"]:
        p, order = probabilities.double().sort(stable=True, dim=1, descending=True)
        scores = p.cumsum(1) - p + _uniform(p, self.seed) * p
        if self.kind == "raps":
            rank = torch.arange(1, p.shape[1] + 1, device=p.device)
            scores = scores + self.penalty * (rank - self.k_reg).clamp(min=0)
        return torch.empty_like(scores).scatter_(1, order, scores)


def _uniform(p: Float[Tensor, "n classes"], seed: int) -> Float[Tensor, "n 1"]:
    """Draw a number in [0, 1) for each sample from its own probabilities, so that it depends on no other sample.

    A split conformal set keeps its coverage with any score that is a function of the sample; SplitMix64 (Steele et al.,
    OOPSLA 2014) makes this one of the bits of the sorted probabilities.
    """
    mixed = torch.full((len(p),), seed, dtype=torch.int64, device=p.device)
    for bits in p[:, :_FEW].contiguous().view(torch.int64).unbind(1):
        mixed = mixed ^ bits
        mixed = (mixed ^ (_shifted(mixed, 30))) * _FIRST
        mixed = (mixed ^ (_shifted(mixed, 27))) * _SECOND
        mixed = mixed ^ _shifted(mixed, 31)
    return (_shifted(mixed, 11).double() / 2**53)[:, None]


def _shifted(bits: Int[Tensor, " n"], places: int) -> Int[Tensor, " n"]:
    """Shift to the right as if there were no sign."""
    return torch.bitwise_and(bits >> places, 2 ** (64 - places) - 1)


@takes_arrays
def coverage_and_size(sets: Bool[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> tuple[float, float]:
    """Return how often sets hold the true class, and their mean size.

    Example:
        >>> coverage_and_size(torch.tensor([[True, False], [True, True]]), torch.tensor([1, 1]))
        (0.5, 1.5)
    """
    check_tensor("sets", sets)
    if sets.dtype != torch.bool or sets.ndim != 2 or not len(sets):
        raise wrong("sets", "booleans of shape [N, K], as ConformalSets gives them", f"{sets.dtype} {list(sets.shape)}")
    check_indices(targets, len(sets))
    check_range(targets, sets.shape[1])
    held = sets.gather(1, targets.long()[:, None])
    return float(held.double().mean()), float(sets.sum(1).double().mean())
