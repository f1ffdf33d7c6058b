"""The constraint's batches from the 5,000 validation images, which the network does not train on: --plugin heldout."""

from dataclasses import replace

from memorised import tenth as of_training

from shiftcal import data
from shiftcal.data.dataset import Dataset
from shiftcal.data.epoch import MixedEpoch

drawn, kept = MixedEpoch.original_batches, {}


def tenth(root: str, *, seed: int = 0) -> Dataset:
    """Load the same images, and keep those that the constraint is to see."""
    made = of_training(root, seed=seed)
    kept["validation"] = made.validation
    return made


def original_batches(self, size, skip=0):
    """Draw batches of validation images as D_orig is drawn from."""
    policy = replace(self.policy, ratio=0.0, before=None)
    return drawn(MixedEpoch(kept["validation"], policy=policy, seed=self._seed, epoch=self._epoch), size, skip)


MixedEpoch.original_batches = original_batches
data.register("cifar10-tenth-held-out", tenth)
