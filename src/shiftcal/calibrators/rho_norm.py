"""ρ-norm scaling."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from shiftcal.calibrators.base import Calibrator, minimise_nll


class RhoNormScaling(Calibrator):
    """Divide logits by γ·‖z‖_ρ + β, which damps large outputs more than small ones (Zhang & Xie, AAAI 2025).

    With γ = 0 it is temperature scaling. γ and β are positive by construction, so that the predicted class stays; they
    minimise the NLL for each ρ of 1, 1.5, 2, 3, 4, 8, ∞, and the best ρ is kept. (The authors minimise a binned error
    with a penalty on the change of the distribution; the NLL needs neither bins nor a weight.)

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        >>> RhoNormScaling().fit(logits, torch.tensor([0, 1, 0, 0])).rho >= 1
        True
    """

    _keys = ("order", "gamma", "beta")
    shift_invariant = False

    NORMS = (1.0, 1.5, 2.0, 3.0, 4.0, 8.0, math.inf)

    @property
    def rho(self) -> float:
        """The fitted order of the norm."""
        self._fitted()
        return self._numbers["order"]

    def _fit(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        fits = []
        for rho in self.NORMS:
            mean = float(_norm(logits, rho).mean())
            start = logits.new_tensor([-3.0 - math.log(max(mean, 1e-12)), 0.0])
            found, value = minimise_nll(partial(_scaled, rho), start, logits, targets)
            fits.append((value, rho, found))
        _, rho, (log_gamma, log_beta) = min(fits, key=lambda fit: fit[0])
        return {"order": logits.new_tensor(rho), "gamma": log_gamma.exp(), "beta": log_beta.exp()}

    def _calibrate(self, logits: Tensor, state: dict[str, Tensor]) -> Tensor:
        log_parameters = torch.stack([state["gamma"], state["beta"]]).log().to(logits.dtype)
        return _scaled(self.rho, log_parameters, logits)


def _scaled(rho: float, log_parameters: Tensor, logits: Tensor) -> Tensor:
    gamma, beta = log_parameters.exp().unbind()
    scaled: Tensor = logits / (gamma * _norm(logits, rho) + beta)
    return scaled


def _norm(logits: Tensor, rho: float) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(logits, rho, dim=1, keepdim=True)
    return norm
