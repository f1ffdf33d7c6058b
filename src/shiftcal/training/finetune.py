"""Two-stage training: the network is frozen, and its classifier alone is trained, on features kept from one pass.

The FGR paper's appendix recommends it for existing models. A frozen network always says the same about an image, so
that what it says about a few views of each, original and filtered, is computed once; the classifier then trains on
these as it would behind the network.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from shiftcal import models
from shiftcal._checks import wrong
from shiftcal._progress import Progress
from shiftcal.augment import AUGMENTATIONS
from shiftcal.data.dataset import Dataset, host_memory
from shiftcal.data.loader import Batch, MixedEpoch, seeded
from shiftcal.methods import find
from shiftcal.records import WEIGHTS
from shiftcal.training.batches import Inputs
from shiftcal.training.captured import Autocast, in_half
from shiftcal.training.config import Config
from shiftcal.training.loop import go_on
from shiftcal.training.run import Run, low_pass_policy, resolve_device

_AT_ONCE = 32  # batches
_MOST = 2  # features may take one half of the memory


@dataclass(frozen=True)
class Features:
    """What a frozen network's classifier sees of the training images: views of the originals, and of them filtered."""

    original: Float[Tensor, "views n width"]
    filtered: Float[Tensor, "filtered_views n width"]
    targets: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.targets)


class FeatureEpoch(MixedEpoch):
    """One epoch of D_mix as features: of each image one of its views, drawn anew every time."""

    split: Features

    def _filter(self, _: Tensor) -> None:
        self._views = self._seeded("view")

    def _gather(self, indices: Iterable[Tensor]) -> Iterator[Batch]:
        """Fetch many batches at once: for so small a model, fetching takes longer than training."""
        indices = iter(indices)
        while several := list(islice(indices, _AT_ONCE)):
            index = torch.cat(several)
            original, filtered = (
                views[self._draw(len(views), len(index)), index] for views in (self.split.original, self.split.filtered)
            )
            features = torch.where(self.filtered[index, None], filtered, original)
            sizes = [len(one) for one in several]
            parts = (features, self.split.targets[index], self.filtered[index])
            yield from (Batch(*part) for part in zip(*(part.split(sizes) for part in parts), strict=True))

    def batches(self, size: int, skip: int = 0) -> Iterator[Batch]:
        """Go through D_mix once; what is skipped is drawn all the same, as every draw depends on those before."""
        return islice(super().batches(size), skip, None)

    def original_batches(self, size: int, skip: int = 0) -> Iterator[Batch]:
        """Draw from D_orig without end."""
        return islice(super().original_batches(size), skip, None)

    def _draw(self, views: int, count: int) -> Tensor:
        return torch.randint(views, (count,), generator=self._views, device=self._device)


class HeadOnly(nn.Module):
    """A network whose classifier alone trains; the rest is frozen, batch-norm and dropout in evaluation mode."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()
        self.head.requires_grad_(True)

    @property
    def head(self) -> nn.Linear:
        """The classifier."""
        return models.classifier_of(self.network)[1]

    def train(self, mode: bool = True) -> HeadOnly:
        """Stay in evaluation mode."""
        self.training = mode
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the network's logits."""
        logits: Tensor = self.network(images)
        return logits


class HeadRun(Run):
    """A classifier in training on features."""

    def mixed_epoch(self, epoch: int, ratio: float) -> MixedEpoch:
        """Draw features instead of images."""
        policy = low_pass_policy(self.config, ratio)
        return FeatureEpoch(self.train_split, policy=policy, seed=self.config.seed, epoch=epoch)

    def validate(self) -> dict[str, float]:
        """Nothing: the validation images are not kept as features."""
        return {}

    def prepare(self, batch: Batch, *_: torch.Generator | None) -> Inputs:
        """Take features as they are: they were cropped, flipped and normalised as images."""
        return Inputs(batch.images, batch.targets, batch.filtered)


def finetune(
    config: Config,
    network: nn.Module,
    dataset: Dataset,
    *,
    checkpoints: Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> tuple[Run, float]:
    """Train a network's classifier in place; filter and constraint are on from the first epoch.

    Args:
        config: Method, data and `finetune` section of a recipe.
        network: A trained classifier that ends in a linear layer.
        dataset: Images as the network takes them, see `run.adapted`.
        checkpoints: Directory for a checkpoint of the classifier after every epoch.
        resume: Continue from the last checkpoint there is; features are computed again.
        progress: Show progress.

    Returns:
        The finished run, and the seconds that keeping the features took.
    """
    check_method(config)
    wanted = {config.row.weights, *config.evaluation.also} - {"last"}
    if wanted:
        raise wrong("train.keep", "'last' where the classifier alone is trained (also in evaluation.also)", min(wanted))
    network.to(resolve_device(config.device), memory_format=torch.channels_last)  # type: ignore[call-overload]
    frozen, settings = HeadOnly(network), head_config(config)
    if config.finetune.views == 0:
        run = Run(settings, dataset, frozen)
        return go_on(run, checkpoints=checkpoints, resume=resume, progress=progress), 0.0
    clock = time.perf_counter()
    features = keep_features(config, frozen, dataset, progress=progress)
    seconds = time.perf_counter() - clock
    run = HeadRun(settings, dataset, frozen.head, features)
    return go_on(run, checkpoints=checkpoints, resume=resume, progress=progress), seconds


# Keys of the whole training that do not count here: those that the section `finetune` has too, and fixed ones.
OWN = ("epochs", "batch_size", "learning_rate", "weight_decay")
FIXED: dict[str, Any] = {
    "accumulate": 1,
    "rectify_per": "batch",
    "optimizer": "sgd",
    "momentum": 0.9,
    "nesterov": False,
    "schedule": "cosine",
    "warmup": 0.0,
    "clip_norm": None,
    "loss_reduction": "mean",
    "start": 0.0,
}


def check_keys(overrides: Iterable[str]) -> None:
    """Raise on overrides that would do nothing where the classifier alone is trained."""
    twins = {f"train.{key}": f"finetune.{key}" for key in OWN} | {"gamma.fgr": "finetune.gamma"}
    fixed = {f"train.{key}": value for key, value in FIXED.items()}
    for key in (override.partition("=")[0].strip() for override in overrides):
        if key in twins:
            raise wrong("set", f"{twins[key]}, which counts where the classifier alone is trained", key)
        if key in fixed:
            raise wrong("set", f"without {key}, which is {fixed[key]} where the classifier alone is trained", key)


def head_config(config: Config) -> Config:
    """Return the config with which a classifier trains: the `finetune` section in place of the recipe's training."""
    own = config.finetune
    train = dataclasses.replace(config.train, **FIXED, **{key: getattr(own, key) for key in OWN})
    gamma = dataclasses.replace(config.gamma, fgr=own.gamma)
    engine = config.engine
    if own.views:  # one small layer
        engine = dataclasses.replace(engine, precision="fp32", compile="off")
    return dataclasses.replace(config, train=train, gamma=gamma, engine=engine)


def load_network(config: Config, num_classes: int) -> nn.Module:
    """Build the configured model with the weights of a checkpoint: a run of ours, or a file of anybody's."""
    path = Path(config.finetuned_from or "")
    path = path / WEIGHTS if path.is_dir() else path
    network = models.build(config.train.model, num_classes)
    models.load_weights(path, network)
    return network


def check_method(config: Config) -> None:
    """Raise if a method mixes images, of which there are only features."""
    if find(config.method).augment is not None:
        raise wrong("method", "one without mixup or AugMix, which need the images", repr(config.method))


def keep_features(config: Config, frozen: HeadOnly, dataset: Dataset, *, progress: bool = True) -> Features:
    """Send views of every training image, original and filtered, through a frozen network and keep what comes out."""
    device = next(frozen.parameters()).device
    own, split = config.finetune, dataset.train.to(device)
    views = [*((f"view {v}", False) for v in range(own.views))]
    views += [(f"filtered view {v}", True) for v in range(own.filtered_views)]
    generators = {name: seeded(config.seed, 0, name, device) for name, _ in views}
    low_pass = low_pass_policy(config, 0.0)
    strengths = torch.tensor(low_pass.strengths, device=device)
    augment = AUGMENTATIONS[config.train.augment]
    kept, targets, done = torch.empty(0), torch.empty(len(split), dtype=torch.int64, device=device), 0
    with Progress("features", len(split) * len(views), enabled=progress) as bar, torch.no_grad():
        extract = Extractor(frozen, half=in_half(config.engine, device))
        for _, part in split.parts(config.evaluation.batch_size):
            place = slice(done, done + len(part))
            targets[place] = part.targets
            for number, (name, filtered) in enumerate(views):
                images, generator = part.images, generators[name]
                if filtered:
                    pick = torch.randint(len(strengths), (len(part),), generator=generator, device=device)
                    images = low_pass(images, strengths[pick])
                features = extract(dataset.normalise(augment(images, generator)))
                if done == number == 0:
                    kept = _room(len(views), len(split), features)
                kept[number, place] = features
                bar.advance(len(part))
            done += len(part)
        bar.line(f"{len(views)} views of {done} images kept")
    return Features(kept[: own.views, :done], kept[own.views :, :done], targets[:done])


def _room(views: int, count: int, example: Tensor) -> Tensor:
    size = views * count * example.shape[1] * 4
    if example.device.type == "cuda":
        most = torch.cuda.mem_get_info(example.device)[0] // _MOST
    else:
        most = host_memory() // _MOST
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
        """Return the features of normalised images."""
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
