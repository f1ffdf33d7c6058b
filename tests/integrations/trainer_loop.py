"""The Trainer of transformers; python trainer_loop.py OUT under torchrun leaves the weights after each case."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import toy
from leaving import leave
from torch import distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification, logging
from transformers.modeling_outputs import ImageClassifierOutput

from shiftcal import losses
from shiftcal.integrations.transformers import FGRTrainer

logging.set_verbosity_error()


class Net(nn.Module):
    """The toy network, with the interface of an image classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.net = toy.net()

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> ImageClassifierOutput:
        logits = self.net(pixel_values)
        return ImageClassifierOutput(None if labels is None else losses.cross_entropy(logits, labels), logits)


class Columns(Dataset):
    """The toy samples as the Trainer takes them."""

    def __init__(self, filtered: list[bool] | None = None) -> None:
        self.data, self.filtered = toy.data(), filtered

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        x, y = self.data[index]
        mask = {} if self.filtered is None else {"filtered": self.filtered[index]}
        return {"pixel_values": x, "labels": int(y), **mask}


def against_brier(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -losses.brier(logits, targets)


def against_soft_ece(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -losses.soft_ece(logits, targets)


def tiny_vit(classes: int, size: int = 32) -> ViTForImageClassification:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=size, patch_size=8, num_labels=classes, hidden_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config)


def arguments(out: str | Path, **options: Any) -> TrainingArguments:
    given = {
        "output_dir": str(out), "use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True,
        "num_train_epochs": toy.EPOCHS, "learning_rate": 0.3, "lr_scheduler_type": "constant", "optim": "sgd",
        "max_grad_norm": 0.5, "train_sampling_strategy": "sequential", "logging_steps": 1,
        "dataloader_pin_memory": False,
    }  # fmt: skip
    return TrainingArguments(**(given | options))


def train(case: str, out: str | Path, ranks: int = 1, data: Dataset | None = None, **options: Any) -> FGRTrainer:
    count = toy.micro_batches(case)
    sizes = {"per_device_train_batch_size": toy.GLOBAL_BATCH // ranks // count, "gradient_accumulation_steps": count}
    constraint = against_soft_ece if case == "gathered" else against_brier
    own = {"main_loss": losses.dual_focal, "constraint_loss": constraint, "train_dataset": data or Columns()}
    trainer = FGRTrainer(Net(), arguments(out, **sizes), **(own | options))
    trainer.train()
    return trainer


def conflicts(trainer: FGRTrainer) -> list[float]:
    return [entry["conflict"] for entry in trainer.state.log_history if "conflict" in entry]


def main() -> None:
    torch.set_num_threads(1)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in toy.CASES:
            trainer = train(case, folder, ranks=2)
            assert isinstance(trainer.model_wrapped, nn.parallel.DistributedDataParallel)
            weights = toy.flat(trainer.model)
            found[case] = {"weights": weights, "apart": toy.apart(weights), "conflicts": conflicts(trainer)}
    if dist.get_rank() == 0:
        torch.save(found, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
    leave()
