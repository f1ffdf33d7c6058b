"""Isotonic regression."""

from __future__ import annotations

import torch
from torch import Tensor

from shiftcal.calibrators.base import Calibrator
from shiftcal.calibrators.histogram import normalised_log


class IsotonicRegression(Calibrator):
    """Map each class's probability by the best non-decreasing function, then normalise (Zadrozny & Elkan, KDD 2002).

    One function per class, fitted by scikit-learn (extra `posthoc`) and applied by linear interpolation between its
    knots. The predicted class may change. Returned logits are logarithms of the calibrated probabilities.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
        >>> isotonic = IsotonicRegression().fit(logits, torch.tensor([0, 1, 1, 0]))  # right every other time
        >>> isotonic(logits).softmax(-1)[0].round(decimals=2)
        tensor([0.5000, 0.5000])
    """

    _keys = ("x0", "y0")
    _more = r"[xy]\d+|classes"

    def _fit(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        try:
            from sklearn.isotonic import IsotonicRegression as Regression
        except ImportError:
            raise ImportError("IsotonicRegression needs scikit-learn: pip install 'shiftcal[posthoc]'.") from None
        p = logits.softmax(-1).cpu()
        state = {}
        for k in range(p.shape[1]):
            fitted = Regression(out_of_bounds="clip").fit(p[:, k].numpy(), (targets.cpu() == k).double().numpy())
            state[f"x{k}"] = torch.from_numpy(fitted.X_thresholds_.copy())
            state[f"y{k}"] = torch.from_numpy(fitted.y_thresholds_.copy())
        return state

    def _calibrate(self, logits: Tensor, state: dict[str, Tensor]) -> Tensor:
        p = logits.double().softmax(-1)
        columns = [_interpolate(p[:, k], state[f"x{k}"], state[f"y{k}"]) for k in range(p.shape[1])]
        return normalised_log(torch.stack(columns, dim=1)).to(logits.dtype)


def _interpolate(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Interpolate linearly between knots, constant beyond the first and the last."""
    x, y = x.double(), y.double()  # `half()` may have narrowed them
    if len(x) == 1:
        return y.expand(len(values))
    right = torch.bucketize(values.contiguous(), x).clamp(1, len(x) - 1)  # as searchsorted, and ONNX can express it
    left = right - 1
    share = ((values - x[left]) / (x[right] - x[left])).clamp(0, 1)
    return torch.lerp(y[left], y[right], share)
