"""METHODS: the whole comparison as one table. A method is a row; an ablation is a row with one cell changed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from shiftcal._errors import wrong
from shiftcal._plugins import Registry

Weights = Literal["last", "best_nll", "best_ece", "average"]


@dataclass(frozen=True)
class Loss:
    """The main loss.

    Attributes:
        name: A name in `shiftcal.losses`.
        gamma: Which of the recipe's focusing parameters it takes, if it takes one.
        runner_up: The reading of the dual focal loss's runner-up, see `losses.dual_focal`.
        prior: Whether it takes the shares of the classes among the training images, `class_prior`.
        smoothing: Its label smoothing α where the recipe does not say (`train.smoothing`).
    """

    name: str
    gamma: Literal["dfl", "fgr", "bsce_gra", "released", "perturbed"] | None = None
    runner_up: Literal["below", "incorrect"] | None = None
    prior: bool = False
    smoothing: float | None = None

    @property
    def is_smoothed(self) -> bool:
        """Whether it takes the recipe's label smoothing."""
        return self.name == "label_smoothing" or self.smoothing is not None


@dataclass(frozen=True)
class LowPass:
    """How the ρ-share of the training images is low-pass filtered after the warm-up.

    Attributes:
        filter: "dct": `dct_low_pass`; "fft": `fft_low_pass`.
        subsampling: The chroma of `dct_low_pass`.
        redraw: Whether the share is drawn anew each epoch, or once.
        after_augment: Whether crop and flip come before the filter, or after it.
        truncate: Whether the filter takes levels that were normalised and cut to 8 bits on the way back, by which some
            lose one.
    """

    filter: Literal["dct", "fft"] = "dct"
    subsampling: Literal["4:4:4", "4:2:0"] = "4:4:4"
    redraw: bool = True
    after_augment: bool = False
    truncate: bool = False


@dataclass(frozen=True)
class Perturb:
    """Which shares of the training images are replaced by a perturbed view, from the first epoch on.

    Attributes:
        augmix: The share that becomes one AugMix view, see `shiftcal.augment.Perturbation`.
        amplitude: The share that gets another image's amplitude spectrum.
        high_band: The share that gets another image's high band.
    """

    augmix: float = 0.0
    amplitude: float = 0.0
    high_band: float = 0.0


@dataclass(frozen=True)
class Constraint:
    """The loss that must not rise after the warm-up, and how its gradient changes the main one.

    Attributes:
        loss: A name in `shiftcal.losses`.
        rule: How the two gradients become one, a name in `shiftcal.gradients.RULES`.
        batch: "independent": a second batch and forward pass; "shared": the main batch's unfiltered members.
        scope: The parameters whose gradient is changed: "all", or those of the last layer, the "classifier".
        momentum: β of the running mean of the constraint's gradient; 0 uses each step's own.
        centres: The bin centres of Soft-ECE, see `losses.soft_ece`.
    """

    loss: str = "soft_ece"
    rule: str = "rectify"
    batch: Literal["independent", "shared"] = "independent"
    scope: Literal["all", "classifier"] = "all"
    momentum: float = 0.0
    centres: Literal["midpoints", "ends"] | None = None


@dataclass(frozen=True)
class Method:
    """One row: everything in which a method differs from plain training.

    Attributes:
        loss: What is descended.
        low_pass: The low-pass filter, after the warm-up.
        constraint: The constraint, after the warm-up.
        augment: "mixup" or "augmix" of `shiftcal.augment`, with the objective that belongs to it, from the first epoch
            on; the constraint sees images without it.
        perturb: Perturbed views in place of a share of the images; a constraint's own batch has none.
        weights: Which weights are evaluated and kept: the last epoch's, those of the epoch with the lowest validation
            NLL or ECE, or an average over the steps.
        clip_norm: Largest norm of the gradient, where a recipe sets none (`train.clip_norm`).
    """

    loss: Loss
    low_pass: LowPass | None = None
    constraint: Constraint | None = None
    augment: Literal["mixup", "augmix"] | None = None
    perturb: Perturb | None = None
    weights: Weights = "last"
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.augment == "mixup" and self.constraint is not None and self.constraint.batch == "shared":
            raise wrong("constraint.batch", "'independent' with mixup, whose images have two classes", "'shared'")


_SMOOTHED = Loss("label_smoothing", smoothing=0.05)
_FGR = Loss("dual_focal", gamma="fgr")
_VIEWED = Loss("dual_focal", gamma="perturbed")
_OF_CLASSIFIER = Constraint(batch="shared", scope="classifier")
_VIEWS = Perturb(augmix=0.6, amplitude=0.1, high_band=0.1)
_RELEASED = Loss("dual_focal", gamma="released", runner_up="incorrect")
_RELEASED_FILTER = LowPass(subsampling="4:2:0", redraw=False, after_augment=True, truncate=True)
_RELEASED_ECE = Constraint(batch="shared", scope="classifier", centres="ends")
_RELEASED_ECE_OF_ALL = replace(_RELEASED_ECE, scope="all")
_AS_RELEASED: dict[str, Any] = {"weights": "best_ece", "clip_norm": 2.0}  # without clipping γ = 5 diverges

# fmt: off
METHODS: dict[str, Method] = {
    "ce":           Method(Loss("cross_entropy")),
    "ls":           Method(_SMOOTHED),
    "mixup":        Method(Loss("cross_entropy"), augment="mixup"),
    "augmix":       Method(Loss("cross_entropy"), augment="augmix"),
    "flsd53":       Method(Loss("flsd53")),
    "dfl":          Method(Loss("dual_focal", gamma="dfl")),
    "maxent":       Method(Loss("max_ent", prior=True)),
    "bsce-gra":     Method(Loss("bsce_gra", gamma="bsce_gra")),
    "fgr":          Method(_FGR, LowPass(), Constraint()),
    # FGR with another constraint.
    "fgr-avuc":     Method(_FGR, LowPass(), Constraint("soft_avuc")),
    "fgr-mmce":     Method(_FGR, LowPass(), Constraint("mmce")),
    "fgr-brier":    Method(_FGR, LowPass(), Constraint("brier")),
    # Ablations: the two halves of FGR, and other rules in place of the projection.
    "filter-only":  Method(_FGR, LowPass()),
    "rect-only":    Method(_FGR, constraint=Constraint()),
    "weighted-sum": Method(_FGR, LowPass(), Constraint(rule="sum")),
    "pcgrad":       Method(_FGR, LowPass(), Constraint(rule="pcgrad")),
    "cagrad":       Method(_FGR, LowPass(), Constraint(rule="cagrad")),
    # Ours: one forward pass for both losses, and a running mean of the constraint's gradient.
    "fgr-shared":   Method(_FGR, LowPass(), Constraint(batch="shared")),
    "fgr-ema":      Method(_FGR, LowPass(), Constraint(momentum=0.98)),
    # Ours: FGR on top of an augmentation.
    "fgr+mixup":    Method(_FGR, LowPass(), Constraint(), augment="mixup"),
    "fgr+augmix":   Method(_FGR, LowPass(), Constraint(), augment="augmix"),
    # FGR as its authors released it, which differs from their paper: the classifier alone is rectified, with other
    # bins, another filter and another reading of the loss. Then with all parameters, and its parts.
    "fgr-released":         Method(_RELEASED, _RELEASED_FILTER, _RELEASED_ECE, **_AS_RELEASED),
    "fgr-released-all":     Method(_RELEASED, _RELEASED_FILTER, _RELEASED_ECE_OF_ALL, **_AS_RELEASED),
    "filter-only-released": Method(_RELEASED, _RELEASED_FILTER, **_AS_RELEASED),
    "dfl-released":         Method(_RELEASED, **_AS_RELEASED),
    # Ours: one perturbed view in place of an image, without AugMix's two further forward passes; then FGR on top of it,
    # with the classifier's gradient rectified on the same batch, and an average of the weights.
    "ce+view":            Method(Loss("cross_entropy"), perturb=Perturb(augmix=1.0), weights="average"),
    "dfl+view":           Method(_VIEWED, perturb=Perturb(augmix=0.7), weights="average"),
    "fgr+view":           Method(_VIEWED, LowPass(), _OF_CLASSIFIER, perturb=Perturb(augmix=0.7), weights="average"),
    # The recommended one: views of three kinds, and an average of the weights; then FGR on top of it, and other losses.
    "dfl+views":          Method(_VIEWED, perturb=_VIEWS, weights="average"),
    "fgr+views":          Method(_VIEWED, LowPass(), _OF_CLASSIFIER, perturb=_VIEWS, weights="average"),
    "ce+views":           Method(Loss("cross_entropy"), perturb=_VIEWS, weights="average"),
    "ls+views":           Method(_SMOOTHED, perturb=_VIEWS, weights="average"),
    # Amplitudes in place of other images' high bands: more clean accuracy on CIFAR-100, less under shift.
    "ls+view+amplitude":  Method(_SMOOTHED, perturb=Perturb(augmix=0.6, amplitude=0.2), weights="average"),
}
# fmt: on


def register(name: str, row: Method) -> None:
    """Add a row of your own under a name that the command line takes; for plugins, see `docs/plugins.md`.

    Example:
        >>> register("doctest-brier", Method(Loss("brier")))
        >>> find("doctest-brier").loss.name
        'brier'
    """
    ADDED.register(name, row)


def find(name: str) -> Method:
    """Look a method up: a row's name, one that a plugin or an entry point adds, or "package.module:row".

    Example:
        >>> find("ce").loss.name
        'cross_entropy'
    """
    return METHODS[name] if name in METHODS else ADDED.find(name)


def uses(row: Method, key: str) -> bool:
    """Tell whether training by a row depends on a key of the configuration. Keys that no cell knows count as used.

    Example:
        >>> uses(METHODS["dfl"], "gamma.dfl"), uses(METHODS["dfl"], "filter.ratio")
        (True, False)
    """
    section, _, name = key.partition(".")
    if section == "filter":
        filters = {"qualities": "dct", "radii": "fft"}
        return row.low_pass is not None and filters.get(name, row.low_pass.filter) == row.low_pass.filter
    if section == "gamma":
        return row.loss.name == "dual_focal" if name == "runner_up" else row.loss.gamma == name
    if section == "constraint":
        return row.constraint is not None and (name != "weight" or row.constraint.rule == "sum")
    if key == "train.start":
        return row.low_pass is not None or row.constraint is not None
    if key == "train.smoothing":
        return row.loss.is_smoothed
    return row.perturb is not None if section == "perturb" else section != "finetune"


ADDED = Registry("method", "shiftcal.methods", lambda: METHODS, "row, a shiftcal.methods.Method", Method)
