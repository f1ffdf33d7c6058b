"""What is trained on what: a method, samples, and how they become a step's inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor, nn

from shiftcal.augment import Perturbation
from shiftcal.data.epoch import MixedEpoch, seeded
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import Split
from shiftcal.filtering import LowPassPolicy
from shiftcal.methods import LowPass, Method
from shiftcal.training.inputs import Preparation, Prepare
from shiftcal.training.settings import FilterSettings, PerturbSettings, TrainSettings

_STATISTICS = 200  # batches from which the statistics of batch-norm are taken anew


@dataclass(frozen=True)
class Task:
    """What is trained on what.

    Attributes:
        name: The method's name, for messages.
        method: Its row.
        settings: Length, batch size and schedule.
        policy: The low-pass filter after the warm-up.
        perturbation: What replaces a share of the images, from the first epoch on.
        perturbed_until: Share of the run after which images are left as they are.
        seed: Where all randomness comes from.
        train: The training samples, on the device of the model.
        prepare: What makes a batch of them a step's inputs.
        validate: Measures a model on the validation samples, if there are any.
        validate_every: After how many epochs it does; the last epoch is always measured.
        test: Measures a model on test samples, by the name of the set; for the history alone.
        test_every: After how many epochs it does.
        noise: Measures the noise of the constraint's gradient, which the history keeps.
        noise_after: The epochs, counted from 1, after which it does.
    """

    name: str
    method: Method
    settings: TrainSettings
    policy: LowPassPolicy
    seed: int
    train: Split
    prepare: Prepare
    perturbation: Perturbation | None = None
    perturbed_until: float = 1.0
    validate: Callable[[nn.Module], dict[str, float]] | None = None
    validate_every: int = 1
    test: Callable[[nn.Module], dict[str, dict[str, float]]] | None = None
    test_every: int = 1
    noise: Callable[[nn.Module], dict[str, dict[str, float]]] | None = None
    noise_after: frozenset[int] = frozenset()

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass through the training set, the smaller last one included."""
        return -(-len(self.train) // self.settings.step_size)

    def is_active(self, epoch: int) -> bool:
        """Tell whether the warm-up is over: filter and constraint are on."""
        return epoch >= self.settings.start_epoch

    def is_validated(self, epoch: int) -> bool:
        """Tell whether the validation samples are measured after an epoch."""
        return (epoch + 1) % self.validate_every == 0 or epoch + 1 == self.settings.epochs

    def is_perturbed(self, epoch: int) -> bool:
        """Tell whether images are perturbed; epochs after the run, which are measured, are like its last one."""
        first_without = max(round(self.perturbed_until * self.settings.epochs), 1)
        return min(epoch, self.settings.epochs - 1) < first_without

    def epoch(self, number: int) -> MixedEpoch:
        """Draw what an epoch trains on."""
        filtered = self.method.low_pass is not None and self.is_active(number)
        policy = self.policy if filtered else replace(self.policy, ratio=0.0, before=None)
        perturbation = self.perturbation if self.is_perturbed(number) else None
        return MixedEpoch(self.train, policy=policy, seed=self.seed, epoch=number, perturbation=perturbation)

    def unseen_images(self, device: torch.device) -> Iterator[Tensor]:
        """Yield images as a step takes them, of an epoch that no step saw: for the statistics of batch-norm."""
        number = self.settings.epochs
        augment, of_method = (seeded(self.seed, number, name, device) for name in ("augment", "method augment"))
        for batch in islice(self.epoch(number).batches(self.settings.batch_size), _STATISTICS):
            yield self.prepare(batch, augment, of_method).images


def low_pass_policy(method: Method, settings: FilterSettings, prepare: Preparation | None = None) -> LowPassPolicy:
    """Return the filter of a method's row, with the share and the strengths of a recipe.

    Where crop and flip come before it, `prepare` tells how.
    """
    cell = method.low_pass or LowPass()
    strengths = settings.radii if cell.filter == "fft" else settings.qualities
    before = prepare.before_filter if prepare is not None and cell.after_augment else None
    return LowPassPolicy(settings.ratio, strengths, cell.filter, cell.subsampling, cell.redraw, before)


def perturbation_of(method: Method, settings: PerturbSettings) -> Perturbation | None:
    """Return the perturbation of a method's row, with the strengths of a recipe."""
    if (cell := method.perturb) is None:
        return None
    shares = {"augmix": cell.augmix, "amplitude": cell.amplitude, "high_band": cell.high_band}
    return Perturbation(**shares, severity=settings.severity, qualities=settings.qualities)


def preparation(method: Method, settings: TrainSettings, preprocess: Preprocessing) -> Preparation:
    """Return what makes stored images a method's inputs."""
    truncate = method.low_pass is not None and method.low_pass.truncate
    return Preparation(settings.augment, method.augment, preprocess, truncate)
