"""A plugin: a loss and two methods of your own, which `shiftcal train --plugin my_methods` finds by name."""

import torch
from torch import Tensor

from shiftcal import losses, methods
from shiftcal.methods import Constraint, Loss, LowPass, Method, Perturb


def poly1(logits: Tensor, targets: Tensor, *, epsilon: float = 1.0) -> Tensor:
    """Poly-1: cross-entropy + ε (1 − p of the true class), Leng et al., ICLR 2022."""
    likely = logits.softmax(-1).gather(1, targets[:, None].long()).squeeze(1)
    return losses.cross_entropy(logits, targets) + epsilon * torch.mean(1 - likely)


losses.register("poly1", poly1)
methods.register("poly1", Method(Loss("poly1")))
methods.register("poly1-fgr", Method(Loss("poly1"), LowPass(), Constraint()))
methods.register("poly1+views", Method(Loss("poly1"), perturb=Perturb(augmix=0.6), weights="average"))
