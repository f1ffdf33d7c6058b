"""Audit a timm model that you have in memory: a small network, trained for a moment, clean and under shift.

python examples/audit_timm.py                 needs the extra `timm`
"""

from dataclasses import replace

import timm
import torch

import shiftcal
from shiftcal import data, losses

dataset = data.load("shapes", train=2000, validation=400, test=400, texture_amplitude=0.3, texture_match=0.95)
preprocess = replace(dataset.preprocess, input_size=64)  # the network halves its images five times
torch.manual_seed(0)
model = timm.create_model(
    "resnet18", pretrained=False, num_classes=len(dataset.classes), layers=(1, 1, 1, 1), channels=(16, 24, 32, 48)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
for _ in range(4):
    for rows in torch.randperm(len(dataset.train)).split(32):
        logits = model(preprocess(dataset.train.images[rows]))
        loss = losses.cross_entropy(logits, dataset.train.targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

images = shiftcal.Images("shapes", dataset.classes, dataset.test, dataset.validation)
corruptions = ("gaussian_noise", "contrast")
record = shiftcal.audit(model.eval(), images, preprocess=preprocess, corruptions=corruptions, progress=False)
for sentence in record.verdict:
    print(sentence)
