import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from shiftcal.experiments import checkpoint
from shiftcal.models import MODELS, build, classifier_of, load_weights

each = pytest.mark.parametrize("name", MODELS)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def residual(stages: list[tuple[int, int]], *, expansion: int, stem: int, classes: int) -> int:
    """Count the weights of a residual network from its description: stages of (blocks, width)."""
    total, inputs = 3 * 9 * stem + 2 * stem, stem
    for stage, (blocks, width) in enumerate(stages):
        for place in range(blocks):
            outputs = width * expansion
            if expansion == 1:
                total += inputs * width * 9 + width * width * 9 + 4 * width
            else:
                total += inputs * width + width * width * 9 + width * outputs + 4 * width + 2 * outputs
            if inputs != outputs or (stage > 0 and place == 0):
                total += inputs * outputs + 2 * outputs
            inputs = outputs
    return total + inputs * classes + classes


def dense(blocks: list[int], growth: int, classes: int) -> int:
    channels = 2 * growth
    total = 27 * channels
    for stage, count in enumerate(blocks):
        for _ in range(count):
            total += 2 * channels + channels * 4 * growth + 8 * growth + 4 * growth * growth * 9
            channels += growth
        if stage < 3:
            total += 2 * channels + channels * (channels // 2)
            channels //= 2
    return total + 2 * channels + channels * classes + classes


WIDTHS = (64, 128, 256, 512)
COUNTED = {
    "resnet18": lambda k: residual(list(zip((2, 2, 2, 2), WIDTHS, strict=True)), expansion=1, stem=64, classes=k),
    "resnet50": lambda k: residual(list(zip((3, 4, 6, 3), WIDTHS, strict=True)), expansion=4, stem=64, classes=k),
    "resnet110": lambda k: residual(list(zip((3, 4, 26, 3), WIDTHS, strict=True)), expansion=4, stem=64, classes=k),
    "wrn26-10": lambda k: residual([(4, 160), (4, 320), (4, 640)], expansion=1, stem=16, classes=k),
    "densenet121": lambda k: dense([6, 12, 24, 16], 32, k),
}
PINNED = {
    "resnet18": 11_173_962,
    "resnet50": 23_520_842,
    "resnet110": 45_864_522,
    "wrn26-10": 36_481_434,
    "densenet121": 6_956_298,
}


@pytest.mark.parametrize("name", PINNED)
def test_parameter_counts(name: str) -> None:
    assert parameters(build(name, 10)) == PINNED[name] == COUNTED[name](10)
    assert parameters(build(name, 100)) == COUNTED[name](100)


@each
@pytest.mark.parametrize("side", [32, 40])
def test_any_image_size_gives_logits(name: str, side: int) -> None:
    model = build(name, 7).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, side, side)).shape == (1, 7)


@each
def test_the_classifier_is_found(name: str) -> None:
    model = build(name, 7)
    found, layer = classifier_of(model)
    assert layer.out_features == 7
    assert model.get_submodule(found) is layer
    assert found in ("classifier", "fc", "linear")


def test_names_are_those_of_published_weights() -> None:
    names = {name: set(build(name, 10).state_dict()) for name in MODELS}
    assert {"conv1.weight", "layer2.0.shortcut.0.weight", "layer4.1.bn2.running_mean", "fc.bias"} <= names["resnet18"]
    assert {"layer3.25.conv3.weight", "layer1.0.shortcut.1.bias"} <= names["resnet110"]
    assert {"layer1.0.downsample.0.weight", "layer3.3.conv2.weight", "fc.weight"} <= names["wrn26-10"]
    assert {"dense4.15.conv2.weight", "trans3.bn.weight", "bn.bias", "linear.weight"} <= names["densenet121"]


def test_same_seed_same_weights() -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(build("wrn26-10", 10).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(models[0].values(), models[1].values(), strict=True))


def test_a_users_model_by_its_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_for_test.py").write_text(
        "from torch import nn\n"
        "def tiny(num_classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(48, num_classes))\n"
        "constant = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert build("mine_for_test:tiny", 5)(torch.zeros(2, 3, 4, 4)).shape == (2, 5)
    for path in ("mine_for_test:missing", "not_there:tiny", "mine_for_test:", ":tiny", "..:tiny", "a b:c", ".x:y"):
        with pytest.raises(ValueError, match=f"`model` should be package.module:factory, .* Found `model = '?{path}"):
            build(path, 5)
    with pytest.raises(ValueError, match=r"`model` should be package.module:factory, a function. .* a int`"):
        build("mine_for_test:constant", 5)
    assert "mine_for_test" in sys.modules


def test_bad_names() -> None:
    with pytest.raises(ValueError, match=r"`model` should be one of .* Did you mean 'resnet18'\?"):
        build("resnet-18", 10)
    with pytest.raises(ValueError, match="`model` should be one that ends in a linear layer"):
        classifier_of(nn.Conv2d(3, 3, 1))


def test_weights_of_another_architecture_are_refused_with_the_first_mismatches(tmp_path: Path) -> None:
    checkpoint.save_weights(tmp_path / "w.safetensors", build("resnet18", 10))
    expected = r"`weights` should be those of the configured model. .*dense1.0.bn1.weight is missing; .* and 719 more"
    with pytest.raises(ValueError, match=expected):
        load_weights(tmp_path / "w.safetensors", build("densenet121", 10))
