"""A module of Lightning's; python lightning_loop.py OUT under torchrun leaves the weights after each case."""

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import toy
from leaving import leave
from lightning.pytorch import Trainer
from torch import distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from shiftcal import losses
from shiftcal.data import shapes
from shiftcal.integrations.lightning import AuditCallback, RectifiedModule

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}


class Net(RectifiedModule):
    def __init__(self, case: str = "means") -> None:
        super().__init__()
        self.net, self.case, self.conflicts = toy.net(), case, []
        self.accumulate = toy.micro_batches(case)
        self.clip_norm = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def both_losses(self, batch: Any, batch_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch
        return toy.both_losses(self.case, self(x), y)

    def on_train_batch_end(self, *_: Any) -> None:
        self.conflicts.append(self.rectification is not None and bool(self.rectification.conflict))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9, weight_decay=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(case: str, ranks: int = 1, module: Net | None = None, **options: Any) -> Net:
    module = Net(case) if module is None else module
    sampler = None
    if ranks > 1:  # that of Lightning's shuffles
        options |= {"strategy": "ddp", "use_distributed_sampler": False}
        sampler = DistributedSampler(toy.data(), ranks, int(os.environ["RANK"]), shuffle=False)
    loader = DataLoader(toy.data(), toy.GLOBAL_BATCH // ranks // module.accumulate, sampler=sampler)
    trainer = Trainer(max_epochs=toy.EPOCHS, devices=ranks, **QUIET, **options)
    trainer.fit(module, loader)
    return module


class Classifier(RectifiedModule):
    def __init__(self, classes: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images)

    def both_losses(self, batch: Any, batch_idx: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self((batch[0].float() - 128) / 64)
        return losses.dual_focal(logits, batch[1]), losses.soft_ece(logits, batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self((batch[0].float() - 128) / 64)

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def audited(ranks: int = 1) -> dict[str, float]:
    """Audit after a test; of two ranks each predicts a part."""
    dataset = shapes(train=8, validation=8, test=40)
    test = (dataset.test.images, dataset.test.targets)
    callback = AuditCallback(test, dataset.preprocess, at="test", corruptions=("fog",), batch_size=7)
    trainer = Trainer(devices=ranks, strategy="ddp" if ranks > 1 else "auto", callbacks=[callback], **QUIET)
    trainer.test(Classifier(), DataLoader(TensorDataset(*test), 20), verbose=False)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    found = {}
    for case in toy.CASES:
        module = fit(case, ranks=2)
        weights = toy.flat(module)
        found[case] = {"weights": weights, "apart": toy.apart(weights), "conflicts": module.conflicts}
    found["audited"] = audited(ranks=2)
    if dist.get_rank() == 0:
        torch.save(found, Path(sys.argv[1]))
    leave()
