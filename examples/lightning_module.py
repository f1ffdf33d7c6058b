"""FGR in a Lightning module, with the low-pass filter as a transform and an audit at the end.

python examples/lightning_module.py [DIRECTORY FOR THE AUDIT'S PAGE]
"""

import sys

import torch
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from shiftcal import data, gather, losses, models
from shiftcal.integrations.lightning import AuditCallback, RectifiedModule
from shiftcal.integrations.torchmetrics import ECE
from shiftcal.integrations.torchvision import RandomLowPass, SeededDataset

EPOCHS, FIRST = 6, 3  # the constraint counts from epoch 3 on


class Classifier(RectifiedModule):
    def __init__(self, dataset: data.Dataset) -> None:
        super().__init__()
        self.net, self.preprocess = models.build("small", num_classes=len(dataset.classes)), dataset.preprocess
        self.ece, self.clip_norm = ECE(), 2.0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images)

    def both_losses(self, batch: list[torch.Tensor], batch_idx: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        images, targets, filtered = batch
        logits = self(self.preprocess(images))
        main_loss = losses.dual_focal(logits, targets, gamma=0.5)
        if self.current_epoch < FIRST:
            return main_loss, None
        return main_loss, losses.soft_ece(*gather(logits[~filtered], targets[~filtered]))

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        images, targets = batch
        self.ece.update(self(self.preprocess(images)).softmax(-1), targets)
        self.log("validation_ece", self.ece)

    def configure_optimizers(self) -> tuple[list, list]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def main() -> None:
    seed_everything(0, verbose=False)
    dataset = data.load("shapes", train=1500, validation=200, test=200)
    train = SeededDataset(
        TensorDataset(dataset.train.images, dataset.train.targets), RandomLowPass(0.05, return_mask=True)
    )
    validation = TensorDataset(dataset.validation.images, dataset.validation.targets)
    test = (dataset.test.images, dataset.test.targets)
    out = sys.argv[1] if len(sys.argv) > 1 else None
    audit = AuditCallback(test, dataset.preprocess, out=out, classes=dataset.classes)
    trainer = Trainer(
        max_epochs=EPOCHS, accelerator="cpu", callbacks=[audit], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Classifier(dataset), DataLoader(train, 64, shuffle=True), DataLoader(validation, 200))
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    print(f"validation ECE {100 * found['validation_ece']:.1f} %")
    for name in ("clean", "shifted"):
        accuracy, ece = (100 * found[f"audit/{name}_{metric}"] for metric in ("accuracy", "ece"))
        print(f"{name}: accuracy {accuracy:.1f} %, ECE {ece:.1f} %")


if __name__ == "__main__":
    main()
