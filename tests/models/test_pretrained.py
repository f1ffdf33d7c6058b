"""Models of timm's, with weights from files: there is no network in tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shiftcal import data
from shiftcal.experiments.config import load_config
from shiftcal.experiments.setup import preprocessing_of
from shiftcal.models import PRETRAINED, build, classifier_of, expected_input, find

timm = pytest.importorskip("timm")
NAMES = {
    "imagenet-resnet50": "resnet50.tv_in1k",
    "imagenet-densenet121": "densenet121.tv_in1k",
    "vit-small": "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "swin-tiny": "swin_tiny_patch4_window7_224.ms_in1k",
    "deit-small": "deit_small_patch16_224.fb_in1k",
}
PARAMETERS = {  # of the published models with a classifier of ten classes
    "imagenet-resnet50": 23_528_522,
    "imagenet-densenet121": 6_964_106,
    "vit-small": 21_669_514,
    "swin-tiny": 27_527_044,
    "deit-small": 21_669_514,
}


@pytest.mark.parametrize("name", PRETRAINED)
def test_sizes_normalisation_and_classifier(name: str) -> None:
    model = build(name, 10)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]
    assert classifier_of(model)[1].out_features == 10
    expected = expected_input(model)
    half = name == "vit-small"
    assert expected["mean"] == ((0.5, 0.5, 0.5) if half else (0.485, 0.456, 0.406))
    assert expected["std"] == ((0.5, 0.5, 0.5) if half else (0.229, 0.224, 0.225))
    assert expected.get("input_size") == (None if name.startswith("imagenet") else 224)


def test_a_file_of_published_weights_starts_a_model(tmp_path: Path) -> None:
    published = timm.create_model("resnet18.a1_in1k")
    torch.save(published.state_dict(), tmp_path / "w.pth")
    model = build("timm/resnet18.a1_in1k", 7, weights=str(tmp_path / "w.pth"))
    for name, tensor in model.state_dict().items():
        if name.startswith("fc."):
            assert len(tensor) == 7
        else:
            assert torch.equal(tensor, published.state_dict()[name]), name
    own = timm.create_model("resnet18.a1_in1k", num_classes=4)  # somebody's, trained for other classes
    torch.save({"state_dict": own.state_dict()}, tmp_path / "own.pth")
    assert torch.equal(build("timm/resnet18.a1_in1k", 7, str(tmp_path / "own.pth")).conv1.weight, own.conv1.weight)


def test_a_classifier_for_the_same_number_of_classes_is_kept(tmp_path: Path) -> None:
    own = timm.create_model("resnet18", num_classes=7)
    torch.save({f"module.{name}": tensor for name, tensor in own.state_dict().items()}, tmp_path / "own.pth")
    assert torch.equal(build("timm/resnet18", 7, str(tmp_path / "own.pth")).fc.weight, own.fc.weight)


def test_a_torchvision_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    code = "from shiftcal.models import find\ntry: find('vit-small')\nexcept ValueError as error: print(error)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "with a torchvision for this torch" in answer.stdout
    assert "operator torchvision::nms does not exist" in answer.stdout


def test_torchvisions_old_names_are_converted(tmp_path: Path) -> None:
    """The published DenseNet file calls its layers norm.1, conv.1; timm knows that."""
    model = timm.create_model("densenet121.tv_in1k")
    old = {}
    for name, tensor in model.state_dict().items():
        for layer in ("norm", "conv"):
            for number in "12":
                name = name.replace(f".{layer}{number}.", f".{layer}.{number}.") if "denselayer" in name else name
        if not name.endswith("num_batches_tracked"):  # nor does the published file have them
            old[name] = tensor
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "w.pth")
    loaded = build("imagenet-densenet121", 3, str(tmp_path / "w.pth"))
    key = "features.denseblock4.denselayer16.conv2.weight"
    assert torch.equal(loaded.state_dict()[key], model.state_dict()[key])


def test_a_file_of_another_architecture_is_refused(tmp_path: Path) -> None:
    torch.save(timm.create_model("resnet18").state_dict(), tmp_path / "w.pth")
    for name in ("imagenet-resnet50", "vit-small"):
        with pytest.raises(
            ValueError, match=r"`weights` should be those of the configured model. .*(Missing|size mis|KeyE|conv)"
        ):
            build(name, 10, str(tmp_path / "w.pth"))


def test_without_a_network_the_error_names_the_file_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("Name or service not known\nmore")

    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(
        ValueError,
        match=r"`train.weights` should be a file with the weights of swin-tiny .timm's swin_tin.*--weights FILE",
    ):
        build("swin-tiny", 10, "pretrained")


def test_unknown_names_and_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"`model` should be a model that timm has. .*Did you mean 'timm/resnet50'\?"
    ) as caught:
        find("timm/resnet5o")
    assert len(str(caught.value)) < 200
    with pytest.raises(ValueError, match=r"`model` should be one of .*vit-small.*Did you mean 'vit-small'\?"):
        find("vit_small")
    with pytest.raises(ValueError, match=r"`model` should be a model that timm has. .*resnet18.bogus"):
        find("timm/resnet18.bogus")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"timm installed .pip install 'shiftcal\[timm\]'"):
        find("vit-small")


def test_a_data_set_gives_a_model_what_it_takes() -> None:
    dataset = data.load("shapes", train=8, validation=8, test=8)
    model = build("vit-small", 8)
    config = load_config("demo")
    assert preprocessing_of(config, dataset, build("small", 8)) == dataset.preprocess
    made = preprocessing_of(config, dataset, model)
    assert (made.mean, made.std, made.input_size) == ((0.5,) * 3, (0.5,) * 3, 224)
    own = load_config("demo", ["train.mean=[0.1, 0.2, 0.3]", "train.input_size=64"])
    made = preprocessing_of(own, dataset, model)
    assert (made.mean, made.std, made.input_size) == ((0.1, 0.2, 0.3), (0.5,) * 3, 64)
    assert made(dataset.train.images).shape == (8, 3, 64, 64)
    assert (made(torch.full((1, 3, 64, 64), 255.0))[0, 0] - 0.9 / 0.5).abs().max() < 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_published_weights_are_asked_for_by_their_tag(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def create(full: str, **options: object) -> torch.nn.Module:
        asked.append((full, options))
        return original("resnet18")

    original = timm.create_model
    monkeypatch.setattr(timm, "create_model", create)
    assert build(name, 10, "pretrained").num_classes == 10
    assert asked == [(NAMES[name], {"pretrained": True})]


def test_none_starts_afresh() -> None:
    for name in ("small", "timm/resnet18"):
        assert sum(p.numel() for p in build(name, 8, "none").parameters()) > 0
