"""FGR in the Trainer of transformers: a small ResNet, randomly initialised.

python examples/hf_trainer.py
"""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments, set_seed

import shiftcal
from shiftcal import data, losses
from shiftcal.auditing.predictors import Predictor
from shiftcal.integrations.torchvision import RandomLowPass, SeededDataset
from shiftcal.integrations.transformers import FGRTrainer, compute_calibration_metrics

EPOCHS = 8


class Columns(Dataset):
    """Samples (image, target) or (image, target, filtered) as the columns that a Trainer takes."""

    def __init__(self, samples: Dataset, preprocess: data.Preprocessing) -> None:
        self.samples, self.preprocess = samples, preprocess

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image, target, *filtered = self.samples[index]
        mask = {"filtered": filtered[0]} if filtered else {}
        return {"pixel_values": self.preprocess(image[None])[0], "labels": target, **mask}


def samples_of(split: data.MemorySplit) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(split.images, split.targets, strict=True))


def main() -> None:
    set_seed(0)
    dataset = data.load("shapes", train=1500, validation=200, test=200)
    config = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128], depths=[1, 1, 1], layer_type="basic",
        num_labels=len(dataset.classes),
    )  # fmt: skip
    train = SeededDataset(samples_of(dataset.train), RandomLowPass(0.05, return_mask=True))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=EPOCHS, per_device_train_batch_size=64, learning_rate=1e-2, warmup_steps=60,
            max_grad_norm=2.0, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
            dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = FGRTrainer(
            ResNetForImageClassification(config),
            arguments,
            main_loss=losses.dual_focal,
            constraint_loss=losses.soft_ece,
            constrain_from=EPOCHS / 2,
            train_dataset=Columns(train, dataset.preprocess),
            eval_dataset=Columns(samples_of(dataset.validation), dataset.preprocess),
            compute_metrics=compute_calibration_metrics,
        )
        trainer.train()
        print(f"validation ECE {100 * trainer.evaluate()['eval_ece']:.1f} %")
    found = shiftcal.evaluate(Predictor(trainer.model), dataset, corruptions=("gaussian_noise",), progress=False)
    for name, cell in (("clean", found.clean), ("shifted", found.shifted)):
        print(f"{name}: accuracy {100 * cell.accuracy:.1f} %, ECE {100 * cell.ece:.1f} %")


if __name__ == "__main__":
    main()
