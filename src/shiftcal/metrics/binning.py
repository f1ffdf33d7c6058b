"""Equal-width bins as sums, the common ground of the one-shot metrics and the meter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class BinSums:
    """Per bin: how many samples, the sum of their confidence and how many were hits. Sums merge by addition."""

    count: Float[Tensor, "*groups bins"]
    confidence: Float[Tensor, "*groups bins"]
    hits: Float[Tensor, "*groups bins"]

    def merge(self, other: BinSums) -> BinSums:
        """Add the sums of another, disjoint set of samples, on its device."""
        mine = (values.to(other.count.device) for values in (self.count, self.confidence, self.hits))
        return BinSums(*(a + b for a, b in zip(mine, (other.count, other.confidence, other.hits), strict=True)))

    def gap(self) -> Float[Tensor, "*groups bins"]:
        """Return |hit rate − mean confidence| per bin, 0 where a bin is empty."""
        return (self.hits - self.confidence).abs() / self.count.clamp(min=1)

    def expected_error(self) -> Float[Tensor, "*groups"]:
        """Return Σ_m |B_m|/N · |acc_m − conf_m|."""
        return (self.hits - self.confidence).abs().sum(-1) / self.count.sum(-1)


def bin_index(confidence: Float[Tensor, "*shape"], bins: int) -> Tensor:
    """Find the right-closed bin ((m−1)/M, m/M] of each value; 0 goes to the first, 1 to the last.

    An edge is the number nearest to m/M in the type of the values, so that 1/3 lies on it in every type.
    """
    inner = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    return torch.bucketize(confidence.contiguous(), inner.to(confidence.dtype))


def bin_sums(confidence: Float[Tensor, " n"], hits: Bool[Tensor, " n"], bins: int) -> BinSums:
    """Sum confidences and hits per bin, in float64."""
    index = bin_index(confidence, bins)
    return BinSums(*(sum_at(index, values, bins) for values in (torch.ones_like(confidence), confidence, hits)))


def class_bin_sums(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"], bins: int) -> BinSums:
    """Sum each class's probabilities, and how often it is the true one, per bin in float64: [classes, bins]."""
    classes = probabilities.shape[1]
    index = bin_index(probabilities, bins) + torch.arange(classes, device=probabilities.device) * bins
    of_true_class = index.gather(1, targets.long()[:, None]).squeeze(1)
    one = torch.ones((), dtype=torch.float64, device=probabilities.device)
    sums = (
        sum_at(index.flatten(), one.expand(index.numel()), classes * bins),
        sum_at(index.flatten(), probabilities.flatten(), classes * bins),
        sum_at(of_true_class, one.expand(len(targets)), classes * bins),
    )
    return BinSums(*(total.view(classes, bins) for total in sums))


def sum_at(index: Int[Tensor, " m"], values: Tensor, size: int) -> Float[Tensor, " size"]:
    """Sum values by their index, in float64."""
    sums = torch.zeros(size, dtype=torch.float64, device=index.device)
    return sums.scatter_add_(0, index, values.double())


def top_label(probabilities: Float[Tensor, "n classes"], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's confidence and whether its prediction is right."""
    confidence, prediction = probabilities.max(1)
    return confidence, prediction == targets
