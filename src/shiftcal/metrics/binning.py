"""Equal-width bins as sums, the common ground of the one-shot metrics and the meter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass
class BinSums:
    """Per bin: how many samples, the sum of their confidence and how many were hits. Sums merge by addition."""

    count: Float[Tensor, "*groups bins"]
    confidence: Float[Tensor, "*groups bins"]
    hits: Float[Tensor, "*groups bins"]

    def __add__(self, other: BinSums) -> BinSums:
        """Merge the sums of two disjoint sets of samples."""
        return BinSums(self.count + other.count, self.confidence + other.confidence, self.hits + other.hits)

    def gap(self) -> Float[Tensor, "*groups bins"]:
        """Return |hit rate − mean confidence| per bin, 0 where a bin is empty."""
        return (self.hits - self.confidence).abs() / self.count.clamp(min=1)

    def expected_error(self) -> Float[Tensor, "*groups"]:
        """Return Σ_m |B_m|/N · |acc_m − conf_m|."""
        return (self.hits - self.confidence).abs().sum(-1) / self.count.sum(-1)


def bin_index(confidence: Float[Tensor, "*shape"], bins: int) -> Tensor:
    """Find the right-closed bin ((m−1)/M, m/M] of each value; 0 goes to the first, 1 to the last."""
    inner = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    return torch.bucketize(confidence.double(), inner)


def bin_sums(confidence: Float[Tensor, " n"], hits: Bool[Tensor, " n"], bins: int) -> BinSums:
    """Sum confidences and hits per bin, in float64."""
    grouped = class_bin_sums(confidence[:, None], hits[:, None], bins)
    return BinSums(grouped.count[0], grouped.confidence[0], grouped.hits[0])


def class_bin_sums(confidence: Float[Tensor, "n classes"], hits: Bool[Tensor, "n classes"], bins: int) -> BinSums:
    """Sum confidences and hits per class and bin, in float64; the result is [classes, bins]."""
    classes = confidence.shape[1]
    offset = torch.arange(classes, device=confidence.device) * bins
    index = (bin_index(confidence, bins) + offset).flatten()

    def total(values: Tensor) -> Tensor:
        sums = torch.zeros(classes * bins, dtype=torch.float64, device=confidence.device)
        return sums.index_add_(0, index, values.double().flatten()).view(classes, bins)

    return BinSums(total(torch.ones_like(confidence)), total(confidence), total(hits))


def top_label(probabilities: Float[Tensor, "n classes"], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return each sample's confidence and whether its prediction is right."""
    confidence, prediction = probabilities.max(1)
    return confidence, prediction == targets


def one_hot(probabilities: Float[Tensor, "n classes"], targets: Tensor) -> Bool[Tensor, "n classes"]:
    """Return which class is the true one."""
    return targets[:, None] == torch.arange(probabilities.shape[1], device=targets.device)
