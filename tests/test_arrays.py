import numpy as np
import pytest
import torch

from shiftcal import calibrators, metrics

P = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.4, 0.35, 0.25]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 1])
NAMES = [
    n for n in metrics.__all__ if n not in ("CalibrationMeter", "Interval", "bootstrap_interval", "ece_noise_floor")
]


@pytest.mark.parametrize("name", NAMES)
def test_metrics_take_arrays_and_lists(name: str) -> None:
    metric = getattr(metrics, name)
    expected = metric(P, Y)
    assert metric(P.numpy(), Y.numpy()) == expected
    assert metric(P.tolist(), Y.tolist()) == expected
    assert metric(probabilities=P.numpy(), targets=Y.numpy().astype(np.uint16)) == expected
    big_endian = P.numpy().astype(">f8")
    assert metric(big_endian, Y.numpy()) == expected


def test_the_others_take_them_too() -> None:
    assert metrics.ece_noise_floor(P.numpy()) == metrics.ece_noise_floor(P)
    found = metrics.bootstrap_interval(metrics.ece, P.numpy(), Y.tolist(), resamples=5, progress=False)
    assert found == metrics.bootstrap_interval(metrics.ece, P, Y, resamples=5, progress=False)
    meter = metrics.CalibrationMeter(3)
    meter.update(P.numpy(), Y.numpy())
    assert meter.compute()["ece"] == pytest.approx(metrics.ece(P, Y))


@pytest.mark.parametrize("name", calibrators.__all__)
def test_calibrators_take_arrays(name: str) -> None:
    if not name[0].isupper() or name == "Calibrator":
        pytest.skip("a function")
    kind, logits = getattr(calibrators, name), P.log()
    expected = kind().fit(logits, Y)(logits)
    torch.testing.assert_close(kind().fit(logits.numpy(), Y.tolist())(logits.numpy()), expected)


def test_what_is_no_array_is_told() -> None:
    with pytest.raises(ValueError, match="`array` should be numbers"):
        metrics.ece([[0.5, 0.5], [1.0]], [0, 1])
    with pytest.raises(ValueError, match="`array` should be numbers"):
        metrics.ece([["a", "b"]], [0])
