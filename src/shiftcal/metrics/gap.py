"""Over- and underconfidence, and how much of a calibration error is chance."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from shiftcal._arrays import takes_arrays
from shiftcal._errors import check_count
from shiftcal.metrics._inputs import check_inputs, fraction
from shiftcal.metrics.binning import bin_index, sum_at, top_label


@takes_arrays
def confidence_gap(probabilities: Float[Tensor, "n classes"], targets: Int[Tensor, " n"]) -> float:
    """Compute mean confidence − accuracy, (1/N) Σ_i (p̂_i − [ŷ_i = y_i]) (Guo et al., ICML 2017): above 0, too sure.

    Example:
        >>> from torch import tensor
        >>> round(confidence_gap(tensor([[0.75, 0.25], [0.75, 0.25]]), tensor([0, 1])), 4)  # 75 % sure, 50 % right
        0.25
    """
    check_inputs(probabilities, targets)
    confidence, hits = top_label(probabilities, targets)
    return fraction(confidence.double().mean() - hits.double().mean())


@takes_arrays
def ece_noise_floor(
    probabilities: Float[Tensor, "n classes"], *, bins: int = 15, draws: int = 100, seed: int = 0
) -> float:
    """Estimate the ECE that a perfectly calibrated model with these confidences shows by chance, E[ECE | y ~ p].

    Classes are drawn as often as the confidences say, so that any error is that of a finite sample: an ECE at this
    floor shows nothing (the null distribution of Bröcker & Smith, Weather and Forecasting 2007). It falls with √N.

    Args:
        probabilities: Rows that sum to 1; their largest entries count.
        bins: Number of bins, as for `ece`.
        draws: How many sets of hits to draw.
        seed: Seed of the draws.

    Example:
        >>> p = torch.tensor([[0.75, 0.25]]).expand(1000, 2)  # |share of 1000 hits − 0.75| on average
        >>> 0.009 < ece_noise_floor(p) < 0.013
        True
    """
    check_inputs(probabilities, torch.zeros(len(probabilities), dtype=torch.int64, device=probabilities.device))
    check_count("bins", bins)
    check_count("draws", draws)
    confidence = probabilities.detach().amax(1).double()
    generator = torch.Generator(confidence.device).manual_seed(seed)
    index, total = bin_index(confidence, bins), confidence.new_zeros(())
    for _ in range(draws):
        hits = torch.rand(confidence.shape, generator=generator, device=confidence.device) < confidence
        total += sum_at(index, hits.double() - confidence, bins).abs().sum() / len(confidence)
    return fraction(total / draws)
