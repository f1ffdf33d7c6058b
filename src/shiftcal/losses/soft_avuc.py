"""Soft accuracy-versus-uncertainty calibration."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from shiftcal._errors import wrong
from shiftcal.losses._inputs import check_inputs


def soft_avuc(
    logits: Float[Tensor, "batch classes"],
    targets: Int[Tensor, " batch"],
    *,
    temperature: float = 0.01,
    threshold: float = 0.1,
    mask: Bool[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Compute the soft AvUC loss log(1 + (n_AU + n_IC)/(n_AC + n_IU)) (Karandikar et al., NeurIPS 2021).

    With entropy H, e = H/log K and uncertainty t = σ(log(e(1−κ)/((1−e)κ))/T), a right sample adds (1−t)(1−tanh H) to
    n_AC and t·tanh H to n_AU, a wrong one the same to n_IC and n_IU. It is a statistic of the whole batch.

    Args:
        logits: Scores before the softmax.
        targets: Class indices.
        temperature: Softness T of the uncertainty.
        threshold: Normalised entropy κ above which a sample counts as uncertain.
        mask: The samples that count, all by default.

    Example:
        >>> logits = torch.tensor([[9.0, 0.0], [0.0, 9.0]])  # sure and right
        >>> round(soft_avuc(logits, torch.tensor([0, 1])).item(), 3)
        0.0
    """
    logits = check_inputs(logits, targets, mask)
    if not temperature > 0:
        raise wrong("temperature", "positive", temperature)
    if not 0 < threshold < 1:
        raise wrong("threshold", "in (0, 1)", threshold)
    log_p = logits.log_softmax(-1)
    h = -(log_p.exp() * log_p.masked_fill(log_p == -math.inf, 0.0)).sum(-1)  # 0 · log 0 is 0
    e = (h / math.log(logits.shape[1])).clamp(1e-5, 1 - 1e-5)
    t = torch.sigmoid((torch.logit(e) - math.log(threshold / (1 - threshold))) / temperature)
    certain, uncertain = (1 - t) * (1 - torch.tanh(h)), t * torch.tanh(h)
    right = log_p.argmax(-1) == targets
    bad, good = torch.where(right, uncertain, certain), torch.where(right, certain, uncertain)
    if mask is not None:
        bad, good = bad.where(mask, 0.0), good.where(mask, 0.0)
    # (n_AU + n_IC) / (n_AC + n_IU)
    return torch.log1p(bad.sum() / good.sum().clamp_min(1e-5))
