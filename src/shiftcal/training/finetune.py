"""Two-stage training: the network is frozen, and its classifier alone is trained, on features kept from one pass.

The FGR paper's appendix recommends it for existing models. A frozen network always returns the same for an image, so
that the features of a few views of each, original and filtered, are computed once; the classifier then trains on
these as it would behind the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from shiftcal import models
from shiftcal._errors import wrong
from shiftcal._progress import Progress
from shiftcal.augment import AUGMENTATIONS
from shiftcal.data.dataset import Dataset, shares_of
from shiftcal.data.epoch import seeded
from shiftcal.data.files.read import host_memory
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import FeatureSplit
from shiftcal.filtering import LowPassPolicy
from shiftcal.methods import Method
from shiftcal.training.engine.precision import Autocast, uses_bfloat16
from shiftcal.training.inputs import features_as_they_are
from shiftcal.training.loop import Hooks, fit
from shiftcal.training.settings import (
    ConstraintSettings,
    EngineSettings,
    FilterSettings,
    FinetuneSettings,
    GammaSettings,
    TrainSettings,
)
from shiftcal.training.state import TrainState, start_state
from shiftcal.training.task import Task, low_pass_policy, preparation

_MEMORY_SHARE = 2  # features may take one half of the memory


@dataclass(frozen=True)
class Stage:
    """How the classifier is trained: the method, and the sections of the configuration that it takes."""

    name: str
    method: Method
    seed: int
    augment: str
    own: FinetuneSettings
    gamma: GammaSettings
    filter: FilterSettings
    constraint: ConstraintSettings
    engine: EngineSettings
    batch_size: int = 500

    def __post_init__(self) -> None:
        if self.method.augment is not None:
            raise wrong("method", "one without mixup or AugMix, which need the images", repr(self.name))
        if self.own.views > 0 and self.own.batch_statistics:
            raise wrong("finetune.batch_statistics", "false where features are kept (finetune.views)", True)
        if self.own.views > 0 and self.method.weights != "last":
            expected = "'last' where features are kept, since no epoch is validated (finetune.views=0 validates each)"
            raise wrong("train.keep", expected, repr(self.method.weights))

    @property
    def train(self) -> TrainSettings:
        """How a classifier trains: with filter and constraint from the first epoch on."""
        own = self.own
        return TrainSettings(
            augment=self.augment,  # type: ignore[arg-type]
            epochs=own.epochs,
            batch_size=own.batch_size,
            learning_rate=own.learning_rate,
            weight_decay=own.weight_decay,
            schedule=own.schedule,
            milestones=own.milestones,
            clip_norm=own.clip_norm,
            warmup=0.0,
            start=0.0,
        )


class HeadOnly(nn.Module):
    """A network whose classifier alone trains; the rest is frozen, batch-norm and dropout in evaluation mode.

    With `batch_statistics` it follows the mode of training: batch-norm's running statistics are then not frozen.
    """

    def __init__(self, network: nn.Module, *, batch_statistics: bool = False) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.batch_statistics = batch_statistics
        self.head.requires_grad_(True)

    @property
    def head(self) -> nn.Linear:
        """The classifier."""
        return models.classifier_of(self.network)[1]

    def train(self, mode: bool = True) -> HeadOnly:
        """Stay in evaluation mode, unless statistics are the batch's."""
        self.training = mode
        self.network.train(mode and self.batch_statistics)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the network's logits."""
        logits: Tensor = self.network(images)
        return logits


def finetune(
    network: nn.Module,
    dataset: Dataset,
    stage: Stage,
    *,
    preprocess: Preprocessing | None = None,
    validate: Callable[[nn.Module], dict[str, float]] | None = None,
    hooks: Callable[[TrainState], Hooks] | None = None,
    progress: bool = True,
) -> tuple[TrainState, float]:
    """Train a network's classifier in place; filter and constraint are on from the first epoch.

    Args:
        network: A trained classifier that ends in a linear layer, on its device.
        dataset: Images.
        stage: How to train.
        preprocess: What makes stored images the network's input; the data set's by default.
        validate: Measures a network on validation images after each epoch; without kept features alone.
        hooks: Makes what happens between steps and epochs, for a state that it may first continue.
        progress: Show progress.

    Returns:
        The state at the end, and the seconds that keeping the features took.
    """
    preprocess = preprocess or dataset.preprocess
    frozen = HeadOnly(network, batch_statistics=stage.own.batch_statistics)
    clock, seconds, engine = time.perf_counter(), 0.0, stage.engine
    if stage.own.views == 0:
        state, task = _through_network(frozen, dataset, stage, preprocess, validate)
    else:
        features = keep_features(frozen, dataset, stage, preprocess, progress=progress)
        seconds = time.perf_counter() - clock
        state, task = head_task(frozen.head, features, stage)
        engine = engine.model_copy(update={"precision": "fp32", "compile": "off"})  # one small layer
    return fit(state, task, engine, hooks=hooks(state) if hooks else None, progress=progress), seconds


def head_task(head: nn.Linear, features: FeatureSplit, stage: Stage) -> tuple[TrainState, Task]:
    """Return a state and a task for `fit` that train a classifier on kept features."""
    prior = shares_of(features.targets, head.out_features)
    return _start(head, stage, prior), Task(
        name=stage.name,
        method=stage.method,
        settings=stage.train,
        policy=low_pass_policy(stage.method, stage.filter),
        seed=stage.seed,
        train=features,
        prepare=features_as_they_are,
    )


def _through_network(
    frozen: HeadOnly,
    dataset: Dataset,
    stage: Stage,
    preprocess: Preprocessing,
    validate: Callable[[nn.Module], dict[str, float]] | None,
) -> tuple[TrainState, Task]:
    """Return a state and a task that send every batch through the frozen network."""
    prepare = preparation(stage.method, stage.train, preprocess)
    return _start(frozen, stage, dataset.prior), Task(
        name=stage.name,
        method=stage.method,
        settings=stage.train,
        policy=low_pass_policy(stage.method, stage.filter, prepare),
        seed=stage.seed,
        train=dataset.train.to(next(frozen.parameters()).device),
        prepare=prepare,
        validate=validate,
    )


def _start(model: nn.Module, stage: Stage, prior: tuple[float, ...]) -> TrainState:
    gamma = stage.gamma.model_copy(update={"fgr": stage.own.gamma, "released": stage.own.gamma})
    wanted = frozenset({stage.method.weights})
    return start_state(model, stage.method, stage.train, gamma, stage.constraint, wanted=wanted, class_prior=prior)


def keep_features(
    frozen: HeadOnly, dataset: Dataset, stage: Stage, preprocess: Preprocessing, *, progress: bool = True
) -> FeatureSplit:
    """Send views of every training image, original and filtered, through a frozen network and keep what comes out."""
    device, own = next(frozen.parameters()).device, stage.own
    split = dataset.train.to(device)
    views = [*((f"view {v}", False) for v in range(own.views))]
    views += [(f"filtered view {v}", True) for v in range(own.filtered_views)]
    generators = {name: seeded(stage.seed, 0, name, device) for name, _ in views}
    low_pass = low_pass_policy(stage.method, stage.filter)
    kept, targets, done = torch.empty(0), torch.empty(len(split), dtype=torch.int64, device=device), 0
    with Progress("features", len(split) * len(views), enabled=progress) as bar, torch.no_grad():
        extract = Extractor(frozen, half=uses_bfloat16(stage.engine.precision, device))
        for _, part in split.parts(stage.batch_size):
            place = slice(done, done + len(part))
            targets[place] = part.targets
            for number, (name, filtered) in enumerate(views):
                images = _drawn(low_pass, part.images, generators[name]) if filtered else part.images
                features = extract(preprocess(AUGMENTATIONS[stage.augment](images, generators[name])))
                if done == number == 0:
                    kept = _room(len(views), len(split), features)
                kept[number, place] = features
                bar.advance(len(part))
            done += len(part)
        bar.line(f"{len(views)} views of {done} images kept")
    return FeatureSplit(kept[: own.views, :done], kept[own.views :, :done], targets[:done])


def _drawn(low_pass: LowPassPolicy, images: Tensor, generator: torch.Generator) -> Tensor:
    """Filter images, each with a strength drawn for it."""
    strengths = torch.tensor(low_pass.strengths, device=images.device)
    pick = torch.randint(len(strengths), (len(images),), generator=generator, device=images.device)
    return low_pass(images, strengths[pick])


def _room(views: int, count: int, example: Tensor) -> Tensor:
    size = views * count * example.shape[1] * 4
    if example.device.type == "cuda":
        most = torch.cuda.mem_get_info(example.device)[0] // _MEMORY_SHARE
    else:
        most = host_memory() // _MEMORY_SHARE
    if size > most:
        expected = f"few enough that {count} images of {example.shape[1]} features take {most / 1e9:.1f} GB"
        raise wrong("finetune.views", expected, f"{views} with filtered ones, {size / 1e9:.1f} GB")
    return torch.empty(views, count, example.shape[1], device=example.device)


class Extractor:
    """Reads what a network's classifier gets, and sees to it that nothing comes after the classifier."""

    def __init__(self, frozen: HeadOnly, *, half: bool = False) -> None:
        self.network: nn.Module = Autocast(frozen.network) if half else frozen.network
        self.head, self._checked = frozen.head, False
        self._tolerance = 0.05 if half else 1e-3

    def __call__(self, images: Tensor) -> Float[Tensor, "batch width"]:
        """Return the features of preprocessed images."""
        seen: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].float()))
        try:
            logits = self.network(images)
        finally:
            hook.remove()
        if not self._checked:
            self._check(seen, logits)
        return seen[0]

    def _check(self, seen: list[Tensor], logits: Tensor) -> None:
        self._checked = True
        whole = len(seen) == 1 and seen[0].ndim == 2 and logits.shape == (len(seen[0]), self.head.out_features)
        if not whole or not torch.allclose(self.head(seen[0]), logits.float(), self._tolerance, self._tolerance):
            found = type(self.network).__name__
            raise wrong("model", "one whose logits are what its last linear layer returns", found)
