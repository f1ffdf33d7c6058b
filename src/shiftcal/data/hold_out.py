"""Seeded splits: which samples of a set are held out."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from shiftcal._errors import wrong


def hold_out(
    targets: Int[Tensor, " n"], *, share: float | None = None, per_class: int | None = None, seed: int = 0
) -> Bool[Tensor, " n"]:
    """Choose samples of every class alike, a share of it or a number; the choice depends on targets and seed alone.

    Example:
        >>> targets = torch.arange(100) % 4
        >>> hold_out(targets, share=0.2).sum(), targets[hold_out(targets, per_class=2)].bincount()
        (tensor(20), tensor([2, 2, 2, 2]))
    """
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(targets), dtype=torch.bool)
    for target in targets.unique().tolist():
        members = (targets == target).nonzero().squeeze(1)
        count = per_class if per_class is not None else round((share or 0.0) * len(members))
        if count >= len(members):
            expected = f"fewer than the {len(members)} images of class {target}"
            raise wrong("held out", expected, count)
        held[members[torch.randperm(len(members), generator=generator)[:count]]] = True
    return held
