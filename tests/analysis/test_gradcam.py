"""Grad-CAM against closed forms, and its layer found in networks of every kind."""

import pytest
import timm
import torch
from torch import Tensor, nn

from shiftcal import models
from shiftcal.analysis.gradcam import grad_cam


class PooledNet(nn.Module):
    """Features, global average pooling, a linear classifier: Grad-CAM is ReLU(Σ_k w_ck A_k) up to a factor."""

    def __init__(self, stride: int = 1, tail: nn.Module | None = None) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, stride=stride, padding=1), nn.Tanh())
        self.tail = tail or nn.Identity()
        self.classifier = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.tail(self.features(images)).mean((2, 3)))


def images(n: int = 3, size: int = 12) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(3))


def closed_form(model: PooledNet, batch: Tensor, classes: Tensor) -> Tensor:
    weights = model.classifier.weight[classes]  # [n, 6]
    found = torch.einsum("nk,nkhw->nhw", weights, model.features(batch)).relu()
    return (found / found.amax((1, 2), keepdim=True)).detach()


def test_pooling_and_a_linear_layer_give_the_weighted_sum_of_features() -> None:
    torch.manual_seed(0)
    model, batch, classes = PooledNet(), images(), torch.tensor([0, 3, 1])
    torch.testing.assert_close(grad_cam(model, batch, classes), closed_form(model, batch, classes))
    predicted = model(batch).argmax(1)
    torch.testing.assert_close(grad_cam(model, batch), closed_form(model, batch, predicted))


def test_a_smaller_map_is_resized_to_the_image() -> None:
    torch.manual_seed(1)
    model, batch, classes = PooledNet(stride=3), images(), torch.tensor([2, 0, 1])
    small = closed_form(model, batch, classes)[:, None]
    expected = nn.functional.interpolate(small, (12, 12), mode="bilinear", align_corners=False)[:, 0]
    expected = expected / expected.amax((1, 2), keepdim=True)
    torch.testing.assert_close(grad_cam(model, batch, classes), expected)


def test_images_of_a_batch_do_not_change_each_other() -> None:
    torch.manual_seed(2)
    model, batch = models.build("small", 5), images(4, 32)
    together = grad_cam(model, batch, torch.tensor([0, 1, 2, 3]))
    alone = torch.cat([grad_cam(model, batch[k : k + 1], torch.tensor([k])) for k in range(4)])
    torch.testing.assert_close(together, alone)


def test_in_place_layers_and_frozen_weights_change_nothing() -> None:
    torch.manual_seed(0)
    plain, in_place = PooledNet(), PooledNet(tail=nn.Hardtanh(-2, 2, inplace=True))
    in_place.load_state_dict(plain.state_dict())
    in_place.requires_grad_(False)
    batch = images()
    torch.testing.assert_close(grad_cam(in_place, batch, layer="features"), grad_cam(plain, batch))


def test_no_positive_evidence_is_zero_and_modes_come_back() -> None:
    model = PooledNet()
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.weight[0] = -1.0
        model.features[0].bias.fill_(50.0)  # tanh is 1 everywhere
    model.features.eval()
    assert grad_cam(model, images(), torch.tensor([0, 0, 0])).eq(0).all()
    assert model.training
    assert not model.features.training


@pytest.mark.parametrize("name", ["small", "resnet18", "densenet121"])
def test_own_networks(name: str) -> None:
    torch.manual_seed(0)
    model, batch = models.build(name, 3), images(2, 32)
    found = torch.stack([grad_cam(model, batch, torch.tensor([k, k])) for k in range(3)])
    assert found.shape == (3, 2, 32, 32)
    assert found.amax((0, 2, 3)).tolist() == [1, 1], "some class has evidence in each image"
    assert found.flatten(2).std(2).max() > 0
    assert found.min() >= 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2}),
        ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2, "class_token": False, "global_pool": "avg"}),
        ("deit_tiny_distilled_patch16_224", {"img_size": 64, "depth": 2}),
        ("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 2, "depths": (1, 1, 2, 1), "embed_dim": 24}),
        ("convnext_atto", {}),
        ("mobilenetv3_small_050", {}),
    ],
)
def test_networks_of_timm(name: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    found = grad_cam(timm.create_model(name, num_classes=3, **options), images(2, 64))
    assert found.shape == (2, 64, 64)
    assert found.flatten(1).std(1).min() > 0, "the map is not constant"


def test_tokens_are_those_of_patches_alone() -> None:
    """A transformer whose class depends on one patch: the map's maximum lies there."""

    class Tokens(nn.Module):
        num_prefix_tokens = 1

        def __init__(self) -> None:
            super().__init__()
            self.embed, self.block, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8), nn.Linear(8, 2)
            self.prefix = nn.Parameter(torch.full((1, 1, 8), 9.0))

        def forward(self, x: Tensor) -> Tensor:
            patches = self.embed(x).flatten(2).transpose(1, 2)
            tokens = self.block(torch.cat([self.prefix.expand(len(x), 1, 8), patches], 1))
            return self.head(tokens.mean(1))

    torch.manual_seed(0)
    model = Tokens()
    with torch.no_grad():
        model.block.weight.copy_(torch.eye(8))
        model.block.bias.zero_()
        model.embed.bias.zero_()
        model.embed.weight.fill_(1.0)
        model.head.weight[1].fill_(1.0)
    batch = torch.zeros(1, 3, 16, 16)
    batch[..., 8:12, 4:8] = 1.0  # third row, second column of patches
    found = grad_cam(model, batch, torch.tensor([1]))[0]
    place = int(found.argmax())
    assert (place // 16 // 4, place % 16 // 4) == (2, 1)


def test_what_has_no_map_or_no_classifier_is_an_error() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 3))
    with pytest.raises(ValueError, match="spatial feature map"):
        grad_cam(flat, images())
    with pytest.raises(ValueError, match="ends in a linear layer"):
        grad_cam(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten()), images())
    with pytest.raises(ValueError, match="Did you mean 'features'"):
        grad_cam(PooledNet(), images(), layer="feature")
