"""FGR in a plain loop with accelerate; on two processes: accelerate launch --cpu --num_processes 2 …

python examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shiftcal
from shiftcal import data, gather, losses
from shiftcal.integrations.accelerate import accelerated_backward
from shiftcal.integrations.torchvision import RandomLowPass

EPOCHS, FIRST = 12, 6  # the constraint counts from epoch 6 on


def network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for channels, width, kernel in ((3, 16, 7), (16, 32, 3), (32, 64, 3)):
        convolution = nn.Conv2d(channels, width, kernel, stride=2, padding=kernel // 2)
        layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, classes))


def main() -> None:
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    dataset = data.load("shapes", train=3000, validation=200, test=200)
    train = TensorDataset(dataset.train.images, dataset.train.targets)
    low_pass = RandomLowPass(share=0.05, return_mask=True)
    net = network(len(dataset.classes))
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    model, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(train, 32, shuffle=True))
    for epoch in range(EPOCHS):
        for images, targets in loader:
            images, filtered = low_pass(images)
            with accelerator.accumulate(model):
                logits = model(dataset.preprocess(images))
                main_loss = losses.dual_focal(logits, targets, gamma=0.5)
                if epoch < FIRST:
                    accelerator.backward(main_loss)
                else:
                    constraint_loss = losses.soft_ece(*gather(logits[~filtered], targets[~filtered]))
                    accelerated_backward(accelerator, main_loss, constraint_loss, model.parameters())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 2.0)
                optimizer.step()
                optimizer.zero_grad()
    found = shiftcal.evaluate(net, dataset, corruptions=("gaussian_noise",), progress=False)
    for name, cell in (("clean", found.clean), ("shifted", found.shifted)):
        accelerator.print(f"{name}: accuracy {100 * cell.accuracy:.1f} %, ECE {100 * cell.ece:.1f} %")
    accelerator.end_training()


if __name__ == "__main__":
    main()
