"""FGR in a Lightning module, with the low-pass filter as a transform and an audit at the end.

python examples/lightning_module.py [DIRECTORY FOR THE AUDIT'S PAGE]
"""

import sys

import torch
from lightning.pytorch import Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shiftcal import data, gather, losses
from shiftcal.integrations.lightning import AuditCallback, RectifiedModule
from shiftcal.integrations.torchmetrics import ECE
from shiftcal.integrations.torchvision import RandomLowPass

EPOCHS, FIRST = 12, 6  # the constraint counts from epoch 6 on


def network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels, width, kernel in ((3, 16, 7), (16, 32, 3), (32, 64, 3)):
        convolution = nn.Conv2d(channels, width, kernel, stride=2, padding=kernel // 2)
        layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, classes))


class Classifier(RectifiedModule):
    def __init__(self, dataset: data.Dataset) -> None:
        super().__init__()
        self.net, self.preprocess = network(len(dataset.classes)), dataset.preprocess
        self.low_pass = RandomLowPass(share=0.05, return_mask=True)
        self.ece, self.clip_norm = ECE(), 2.0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images)

    def both_losses(self, batch: list[torch.Tensor], batch_idx: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        images, targets = batch
        images, filtered = self.low_pass(images)
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
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def main() -> None:
    seed_everything(0, verbose=False)
    dataset = data.load("shapes", train=3000, validation=200, test=200)
    train = TensorDataset(dataset.train.images, dataset.train.targets)
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
