"""FGR in the loop of timm's train script: its models, optimisers and schedules, our backward pass, nothing patched.

python examples/timm_loop.py
"""

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import dispatch_clip_grad

import shiftcal
from shiftcal import data, dct_low_pass, losses, rectified_backward

EPOCHS, FIRST, BATCH = 8, 4, 64  # the constraint counts from epoch 4 on


def main() -> None:
    torch.manual_seed(0)
    dataset = data.load("shapes", train=2000, validation=200, test=200)
    model = timm.create_model("test_efficientnet", pretrained=False, num_classes=len(dataset.classes))
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-2, weight_decay=0.01)
    updates = len(dataset.train) // BATCH
    scheduler, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=EPOCHS, updates_per_epoch=updates)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(dataset.train))[: updates * BATCH]
        for update, rows in enumerate(order.split(BATCH), start=epoch * updates):
            images, targets = dataset.train.images[rows], dataset.train.targets[rows]
            filtered = torch.rand(BATCH) < 0.05
            quality = torch.tensor([15, 18, 25])[torch.randint(3, (int(filtered.sum()),))]
            images[filtered] = dct_low_pass(images[filtered], quality)
            logits = model(dataset.preprocess(images))
            main_loss = losses.dual_focal(logits, targets, gamma=0.5)
            optimizer.zero_grad()
            if epoch < FIRST:
                main_loss.backward()
            else:
                constraint_loss = losses.soft_ece(logits, targets, mask=~filtered)
                rectified_backward(main_loss, constraint_loss, model.parameters())
            dispatch_clip_grad(model.parameters(), value=2.0, mode="norm")
            optimizer.step()
            scheduler.step_update(update + 1)
        scheduler.step(epoch + 1)
    found = shiftcal.evaluate(model, dataset, corruptions=("gaussian_noise",), progress=False)
    for name, cell in (("clean", found.clean), ("shifted", found.shifted)):
        print(f"{name}: accuracy {100 * cell.accuracy:.1f} %, ECE {100 * cell.ece:.1f} %")


if __name__ == "__main__":
    main()
