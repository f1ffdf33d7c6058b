"""The sections of a configuration that training takes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import model_validator

from shiftcal._sections import (
    Count,
    CountOrNone,
    Epochs,
    Fraction,
    Mean,
    Names,
    NotNegative,
    Positive,
    Qualities,
    Radii,
    Section,
    Share,
    Std,
    should,
)
from shiftcal.methods import Weights

TRACKERS = ("tensorboard", "wandb", "mlflow")


class TrainSettings(Section):
    """Model, optimiser, schedule, length, and what is done to every training image."""

    model: str = "small"
    """A name (see `docs/data-and-models.md`), `timm/NAME`, or `package.module:factory`."""
    weights: str | None = None
    """What the model starts from: a file, or `pretrained`."""
    input_size: Count | None = None
    """Images become so many pixels square; by default as the model or the data set says."""
    mean: Mean = ()
    """Mean of the channels for the normalisation; by default as the model or the data set says."""
    std: Std = ()
    """Standard deviation of the channels, likewise."""
    epochs: Count = 20
    """Passes through the training set."""
    batch_size: Count = 64
    """Images in a batch, over all ranks together."""
    accumulate: Count = 1
    """Batches in a step, whose gradients are averaged."""
    rectify_per: Literal["batch", "micro_batch"] = "batch"
    """Whether gradients are rectified once for the step, or for each of its batches."""
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """The optimiser."""
    learning_rate: Positive = 0.05
    """The highest learning rate."""
    momentum: Share = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Nesterov's form of it."""
    weight_decay: NotNegative = 5e-4
    """Weight decay."""
    schedule: Literal["one_cycle", "cosine", "multi_step", "exponential", "constant"] = "one_cycle"
    """How the learning rate changes."""
    warmup: Share = 0.2
    """Share of the run in which `one_cycle` and `cosine` rise."""
    milestones: Epochs = ()
    """Epochs at which `multi_step` multiplies by `decay`."""
    decay: Annotated[float, should("in (0, 1]", lambda v: 0 < v <= 1)] = 0.1
    """Factor of `multi_step` and, after every epoch, of `exponential`."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient, after rectification; by default the row's choice."""
    smoothing: Share | None = None
    """α of label smoothing, for methods with that loss; by default the row's choice."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Whether the gradient is that of the mean over the batch, or of the sum."""
    start: Annotated[float, should("a fraction in [0, 1]", lambda v: 0 <= v <= 1)] = 4 / 7
    """Share of the run after which filter and constraint start."""
    augment: Literal["none", "crop_flip"] = "crop_flip"
    """What is done to every training image."""
    sync_batch_norm: bool = False
    """Whether ranks share the statistics of batch-norm (GPUs only)."""
    keep: Weights | None = None
    """Which weights are evaluated and written; by default what the method's row says."""
    average_decay: Share = 0.999
    """Decay of the average over the steps that `keep = "average"` takes."""
    track: Annotated[Names, should(f"of {', '.join(TRACKERS)}", lambda v: all(name in TRACKERS for name in v))] = ()
    """Trackers to tell: `tensorboard`, `wandb`, `mlflow`."""

    @property
    def step_size(self) -> int:
        """Images in a step."""
        return self.batch_size * self.accumulate

    @property
    def start_epoch(self) -> int:
        """The first epoch, counted from 0, with filter and constraint."""
        return round(self.start * self.epochs)


class EngineSettings(Section):
    """How the step is executed."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bfloat16 on a GPU."""
    capture: Literal["auto", "off"] = "auto"
    """`auto`: the step is a CUDA graph on a GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """`auto`: long runs on a GPU are compiled."""
    checkpoint_every: Count = 1
    """Epochs from one checkpoint to the next; the last epoch always leaves one."""
    deterministic: bool = False
    """The same result every time on one machine, also on a GPU; slower there."""


class FilterSettings(Section):
    """Low-pass filter: share and strengths. The rest is as the method's row says unless it is set here."""

    ratio: Share = 0.05
    """Share ρ of the training images that are filtered."""
    qualities: Qualities = (15, 18, 25)
    """JPEG qualities λ that the filter `dct` draws from."""
    radii: Radii = (0.8, 0.6, 0.4)
    """Radii that the filter `fft` draws from."""
    filter: Literal["dct", "fft"] | None = None
    """The filter."""
    subsampling: Literal["4:4:4", "4:2:0"] | None = None
    """The chroma of `dct`."""
    redraw: bool | None = None
    """Whether the share is drawn anew each epoch, or once."""
    after_augment: bool | None = None
    """Whether images are filtered after crop and flip, or as they are stored."""
    truncate: bool | None = None
    """Whether the filter takes levels that were normalised and cut to 8 bits on the way back."""


class PerturbSettings(Section):
    """Perturbed views in place of images, for methods that have them."""

    augmix: Fraction | None = None
    """The share of the images that become an AugMix view; by default that of the method's row."""
    amplitude: Fraction | None = None
    """The share that gets another image's amplitude spectrum, likewise."""
    high_band: Fraction | None = None
    """The share that gets another image's high band, likewise."""
    severity: Annotated[float, should("in 0.1..10", lambda v: 0.1 <= v <= 10)] = 3.0
    """The severity of AugMix."""
    qualities: Qualities = tuple(range(5, 30))
    """What the quality λ of another image's high band is drawn from."""
    until: Annotated[float, should("in (0, 1]", lambda v: 0 < v <= 1)] | None = None
    """Share of the run after which images are left as they are; by default all of it has views."""

    @model_validator(mode="before")
    @classmethod
    def _without_share(cls, values: Any) -> Any:
        """Take up what an earlier version wrote: one share for all kinds, which was not set."""
        if isinstance(values, dict) and values.get("share", 0) is None:
            return {key: value for key, value in values.items() if key != "share"}
        return values


class GammaSettings(Section):
    """Focusing parameters γ, and the reading of the dual focal loss."""

    dfl: NotNegative = 3.0
    """Of the baseline dual focal loss."""
    fgr: NotNegative = 3.0
    """Of FGR and its ablations."""
    bsce_gra: NotNegative = 1.0
    """Of BSCE-GRA."""
    released: NotNegative = 5.0
    """Of FGR as its authors released it."""
    perturbed: NotNegative = 1.0
    """Of methods with perturbed views."""
    runner_up: Literal["below", "incorrect"] | None = None
    """The reading of the dual focal loss's runner-up; by default that of the method's row."""


class ConstraintSettings(Section):
    """The constraint, where the recipe should overrule the method's row."""

    weight: NotNegative = 1.0
    """Its weight where a rule adds it."""
    scope: Literal["all", "classifier"] | None = None
    """The parameters whose gradient is changed."""
    centres: Literal["midpoints", "ends"] | None = None
    """The bin centres of Soft-ECE."""


class FinetuneSettings(Section):
    """Training the classifier alone on a frozen network: what differs from training it whole."""

    views: CountOrNone = 4
    """Views kept of each training image; 0 keeps none and sends every batch through the network."""
    filtered_views: CountOrNone = 4
    """Views kept of each image low-pass filtered."""
    epochs: Count = 20
    """Passes through the training set."""
    batch_size: Count = 128
    """Images in a batch."""
    learning_rate: Positive = 0.01
    """The highest learning rate."""
    weight_decay: NotNegative = 5e-4
    """Weight decay."""
    schedule: Literal["cosine", "multi_step", "constant"] = "cosine"
    """How the learning rate changes."""
    milestones: Epochs = ()
    """Epochs at which `multi_step` divides it by ten."""
    clip_norm: Positive | None = None
    """Largest norm of the gradient, after rectification."""
    batch_statistics: bool = False
    """Whether the frozen network stays in training mode, as FGR's authors released it: batch-norm uses the batch's
    statistics, and the running ones move on. Only with `views = 0`."""
    gamma: NotNegative = 3.0
    """γ of FGR."""
