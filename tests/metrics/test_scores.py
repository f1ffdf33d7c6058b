import pytest
import torch

from shiftcal.metrics import brier, brier_calibration, brier_refinement


def test_brier_parts_of_few_forecasts_are_murphys() -> None:
    """With one value in each bin the parts are Σ n/N (p − ō)² and Σ n/N ō(1 − ō), for each class."""
    p = torch.tensor([0.1] * 10 + [0.5] * 20 + [0.9] * 30, dtype=torch.float64)
    hits = torch.tensor([1] * 2 + [0] * 8 + [1] * 9 + [0] * 11 + [1] * 24 + [0] * 6)
    shares = {0.1: (10, 0.2), 0.5: (20, 0.45), 0.9: (30, 0.8)}
    calibration = sum(n / 60 * (q - o) ** 2 for q, (n, o) in shares.items())
    refinement = sum(n / 60 * o * (1 - o) for n, o in shares.values())
    both, targets = torch.stack([1 - p, p], dim=1), hits.long()
    assert brier_calibration(both, targets) == pytest.approx(2 * calibration)
    assert brier_refinement(both, targets) == pytest.approx(2 * refinement)
    assert brier(both, targets) == pytest.approx(2 * (calibration + refinement))
