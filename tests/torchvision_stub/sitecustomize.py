"""Declares torchvision's operators in every Python process that has this folder on PYTHONPATH; see tests/conftest.py.

torchvision without compiled operators for this build of torch fails on import, and timm, lightning and transformers
with it, unless the operators are at least declared. Nothing calls them.
"""

import torch

TORCHVISION = torch.library.Library("torchvision", "DEF")
if not hasattr(torch.ops.torchvision, "nms"):
    for operator in ("nms", "qnms"):
        TORCHVISION.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
