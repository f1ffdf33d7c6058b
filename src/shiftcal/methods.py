"""METHODS: the whole comparison as one table. A method is a row; an ablation is a row with one cell changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shiftcal._checks import unknown, wrong


@dataclass(frozen=True)
class Method:
    """One row: everything in which a method differs from plain training. Filter and constraint start after the warm-up.

    Attributes:
        loss: The main loss, a name in `shiftcal.losses`.
        gamma: Which of the recipe's focusing parameters the main loss takes, if it takes one.
        filter: Whether a ρ-share of the training images is low-pass filtered each epoch.
        constraint: The loss whose gradient the rule looks at, a name in `shiftcal.losses`.
        rule: How the two gradients become one, a name in `shiftcal.rectification.RULES`.
        constraint_batch: "independent": a second batch and forward pass; "shared": the main batch's unfiltered members.
        constraint_momentum: β of the running mean of the constraint's gradient; 0 uses each step's own.
        augment: "mixup" or "augmix" of `shiftcal.augment`, with the objective that belongs to it, from the first epoch
            on; the constraint sees images without it.
    """

    loss: str
    gamma: Literal["dfl", "fgr", "bsce_gra"] | None = None
    filter: bool = False
    constraint: str | None = None
    rule: str = "none"
    constraint_batch: Literal["independent", "shared"] = "independent"
    constraint_momentum: float = 0.0
    augment: Literal["mixup", "augmix"] | None = None

    def __post_init__(self) -> None:
        if self.augment == "mixup" and self.constraint_batch == "shared":
            raise wrong("constraint_batch", "'independent' with mixup, whose images have two classes", "'shared'")


# fmt: off
METHODS: dict[str, Method] = {
    "ce":           Method("cross_entropy"),
    "ls":           Method("label_smoothing"),
    "mixup":        Method("cross_entropy", augment="mixup"),
    "augmix":       Method("cross_entropy", augment="augmix"),
    "flsd53":       Method("flsd53"),
    "dfl":          Method("dual_focal", gamma="dfl"),
    "maxent":       Method("max_ent"),
    "bsce-gra":     Method("bsce_gra", gamma="bsce_gra"),
    "fgr":          Method("dual_focal", gamma="fgr", filter=True, constraint="soft_ece", rule="rectify"),
    # FGR with another constraint.
    "fgr-avuc":     Method("dual_focal", gamma="fgr", filter=True, constraint="soft_avuc", rule="rectify"),
    "fgr-mmce":     Method("dual_focal", gamma="fgr", filter=True, constraint="mmce", rule="rectify"),
    "fgr-brier":    Method("dual_focal", gamma="fgr", filter=True, constraint="brier", rule="rectify"),
    # Ablations: the two halves of FGR, and other rules in place of the projection.
    "filter-only":  Method("dual_focal", gamma="fgr", filter=True),
    "rect-only":    Method("dual_focal", gamma="fgr", constraint="soft_ece", rule="rectify"),
    "weighted-sum": Method("dual_focal", gamma="fgr", filter=True, constraint="soft_ece", rule="sum"),
    "pcgrad":       Method("dual_focal", gamma="fgr", filter=True, constraint="soft_ece", rule="pcgrad"),
    "cagrad":       Method("dual_focal", gamma="fgr", filter=True, constraint="soft_ece", rule="cagrad"),
    # Ours: one forward pass for both losses, and a running mean of the constraint's gradient.
    "fgr-shared":   Method("dual_focal", gamma="fgr", filter=True, constraint="soft_ece", rule="rectify",
                           constraint_batch="shared"),
    "fgr-ema":      Method("dual_focal", gamma="fgr", filter=True, constraint="soft_ece", rule="rectify",
                           constraint_momentum=0.98),
    # Ours: FGR on top of an augmentation.
    "fgr+mixup":    Method("dual_focal", gamma="fgr", filter=True, constraint="soft_ece", rule="rectify",
                           augment="mixup"),
    "fgr+augmix":   Method("dual_focal", gamma="fgr", filter=True, constraint="soft_ece", rule="rectify",
                           augment="augmix"),
}
# fmt: on


def find(name: str) -> Method:
    """Look a method up by name.

    Example:
        >>> find("ce").loss
        'cross_entropy'
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
