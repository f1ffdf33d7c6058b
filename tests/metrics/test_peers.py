"""The metrics against torchmetrics and scikit-learn, which nobody here wrote, and where torchmetrics is wrong."""

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from shiftcal import metrics


def case(n: int, classes: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n + classes)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=dtype)
    return logits.softmax(-1), torch.multinomial((logits / 2).softmax(-1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("bins", [1, 10, 15, 100])
@pytest.mark.parametrize(("n", "classes"), [(1, 2), (37, 3), (2000, 10), (500, 100)])
@pytest.mark.parametrize(("ours", "norm"), [(metrics.ece, "l1"), (metrics.mce, "max")])
def test_top_label_errors_are_those_of_torchmetrics(ours: object, norm: str, n: int, classes: int, bins: int) -> None:
    p, y = case(n, classes)
    # It adds up in float32.
    expected = float(multiclass_calibration_error(p, y, num_classes=classes, n_bins=bins, norm=norm))
    assert ours(p, y, bins=bins) == pytest.approx(expected, rel=2e-5, abs=1e-6)


def test_accuracy_is_that_of_torchmetrics() -> None:
    p, y = case(1000, 7)
    expected = float(multiclass_accuracy(p, y, num_classes=7, average="micro"))
    assert metrics.accuracy(p, y) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("n", "classes"), [(50, 2), (2000, 10)])
def test_scores_are_those_of_scikit_learn(n: int, classes: int) -> None:
    p, y = case(n, classes)
    labels = list(range(classes))
    assert metrics.nll(p, y) == pytest.approx(log_loss(y.numpy(), p.numpy(), labels=labels), rel=1e-6)
    # For two classes scikit-learn halves the score unless told otherwise.
    expected = brier_score_loss(y.numpy(), p.numpy(), labels=labels, scale_by_half=False)
    assert metrics.brier(p, y) == pytest.approx(expected, rel=1e-6)


def torchmetrics_ece(p: torch.Tensor, y: torch.Tensor, bins: int) -> float:
    return float(multiclass_calibration_error(p, y, num_classes=p.shape[1], n_bins=bins))


def test_full_confidence_is_in_the_last_bin_and_not_in_one_of_its_own() -> None:
    # torchmetrics puts confidence 1 into a bin beyond the last (its issue 3510). Of these two samples, one is 95 %
    # sure and right and one 100 % sure and wrong: in one bin, their gaps of −0.05 and 1 partly cancel.
    p, y = torch.tensor([[0.95, 0.05], [1.0, 0.0]]), torch.tensor([0, 1])
    right = abs(0.5 - 0.975)
    assert metrics.ece(p, y, bins=10) == pytest.approx(right, rel=1e-6)
    assert metrics.mce(p, y, bins=10) == pytest.approx(right, rel=1e-6)
    assert torchmetrics_ece(p, y, 10) == pytest.approx((0.05 + 1) / 2, rel=1e-6)


def test_bins_are_closed_on_the_right() -> None:
    # Guo et al. define ((m−1)/M, m/M]; torchmetrics closes bins on the left. Three classes, confidences 0.5 and 0.75
    # with four bins: 0.5 belongs to the second bin alone, together with 0.4, and 0.75 to the third.
    p = torch.tensor([[0.5, 0.25, 0.25], [0.4, 0.3, 0.3], [0.75, 0.125, 0.125], [0.6, 0.2, 0.2]])
    y = torch.tensor([0, 1, 0, 1])
    right = 2 / 4 * abs(1 / 2 - (0.5 + 0.4) / 2) + 2 / 4 * abs(1 / 2 - (0.75 + 0.6) / 2)
    assert metrics.ece(p, y, bins=4) == pytest.approx(right, rel=1e-6)
    assert torchmetrics_ece(p, y, 4) != pytest.approx(right, rel=0.01)


def test_confidence_is_never_guessed_to_be_a_logit() -> None:
    # torchmetrics applies softmax when any value leaves [0, 1] (its issues 2195, 2329, 3269), so that rounding above 1
    # in one entry changes what the whole batch means. Here the caller is told, or nothing changes.
    p, y = torch.tensor([[0.7, 0.3], [1.0 + 1e-5, -1e-5]]), torch.tensor([1, 0])
    with pytest.raises(ValueError, match=r"`probabilities` should be in \[0, 1\] \(apply softmax to logits first\)"):
        metrics.ece(p, y)
    right = metrics.ece(p.clamp(0, 1), y)
    assert right == pytest.approx(0.7 / 2, rel=1e-6)
    assert torchmetrics_ece(p, y, 15) != pytest.approx(right, rel=0.01)


def test_confidence_zero_is_in_the_first_bin() -> None:
    # Its issues 1646 and 1744. No prediction of a whole distribution has it, but a class by itself does.
    p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert metrics.classwise_ece(p, torch.tensor([0, 0, 1])) == 0
    assert metrics.classwise_ece(p, torch.tensor([0, 1, 1])) == pytest.approx(np.mean([1 / 3, 1 / 3]))
