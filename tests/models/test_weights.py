"""Weights from files."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch

from shiftcal.experiments import checkpoint
from shiftcal.models import build, class_names, classifier_of, load_weights, read_weights


def state(seed: int = 1, classes: int = 8) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return build("small", classes).state_dict()


@pytest.mark.parametrize(
    "wrap",
    [
        "plain",
        "state_dict",
        "model_state_dict",
        "model",
        "net",
        "weights",
        "lightning",
        "module.",
        "_orig_mod.",
        "model.module.",
        "backbone.",
        "net.model._orig_mod.",
        "safetensors",
    ],
)
def test_what_people_save(wrap: str, tmp_path: Path) -> None:
    tensors, path = state(), tmp_path / "w.pt"
    if wrap == "safetensors":
        safetensors.torch.save_file(tensors, path)
    elif wrap.endswith("."):
        torch.save({wrap + name: tensor for name, tensor in tensors.items()}, path)
    elif wrap == "lightning":
        torch.save({"epoch": 3, "state_dict": {f"model.{name}": t for name, t in tensors.items()}}, path)
    else:
        torch.save(tensors if wrap == "plain" else {"epoch": 3, wrap: tensors}, path)
    model = build("small", 8)
    load_weights(path, model)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), tensors.values(), strict=True))


class Wrap(torch.nn.Module):
    """A model whose own names begin with what wrappers put before names."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build("small", 8)


def test_a_prefix_of_the_models_own_stays(tmp_path: Path) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in state().items()}
    torch.save(tensors, tmp_path / "w.pt")
    own = Wrap()
    load_weights(tmp_path / "w.pt", own)
    assert torch.equal(own.state_dict()["model.classifier.weight"], tensors["model.classifier.weight"])
    torch.save({f"module.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "w.pt")
    load_weights(tmp_path / "w.pt", Wrap())


def test_old_files_without_counts_of_batches_load(tmp_path: Path) -> None:
    torch.save({n: t for n, t in state().items() if not n.endswith("num_batches_tracked")}, tmp_path / "w.pt")
    load_weights(tmp_path / "w.pt", build("small", 8))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/shiftcal-was-there",)


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": state(), "hook": Evil()}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=r"or tensors alone saved by torch. .*which holds more than tensors"):
        read_weights(tmp_path / "w.pt")
    assert not Path("/tmp/shiftcal-was-there").exists()


def test_what_else_a_file_holds_is_named(tmp_path: Path) -> None:
    torch.save({"state_dict": state(), "hyper_parameters": {"root": Path("images")}}, tmp_path / "w.ckpt")
    with pytest.raises(ValueError, match=r"more than tensors, a pathlib\.\w*Path \(torch\.save its state_dict alone\)"):
        read_weights(tmp_path / "w.ckpt")
    (tmp_path / "lfs.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    with pytest.raises(ValueError, match=r"a pointer of Git LFS to the file: git lfs pull"):
        read_weights(tmp_path / "lfs.pt")


def test_a_training_module_may_keep_a_loss_with_weights(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    inner = {f"net.{name}": tensor for name, tensor in model.state_dict().items()}
    for more, right in (({"criterion.weight": torch.ones(2)}, True), ({"ema.0.weight": torch.ones(2)}, False)):
        torch.save({"state_dict": inner | more}, tmp_path / "w.ckpt")
        other = torch.nn.Sequential(torch.nn.Linear(2, 2))
        if right:
            load_weights(tmp_path / "w.ckpt", other)
            assert torch.equal(other[0].weight, model[0].weight)
        else:
            with pytest.raises(ValueError, match=r"0\.weight is missing"):
                load_weights(tmp_path / "w.ckpt", other)


@pytest.mark.parametrize("names", ["abcd", ["features.a", "features.b", "features.c", "features.d"]])
def test_names_of_another_model_are_shown(names: Sequence[str], tmp_path: Path) -> None:
    """As they are in the file, also where all of them have a prefix."""
    torch.save({f"{name}.w": torch.zeros(2) for name in names}, tmp_path / "w")
    shown = ", ".join(f"{name}.w" for name in names[:3])
    with pytest.raises(ValueError, match=rf"is missing; .* more; it has {re.escape(shown)}"):
        load_weights(tmp_path / "w", build("small", 5))


def test_what_is_no_state_dict(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`weights` should be a file"):
        read_weights(tmp_path / "missing.pt")
    for content, reason in (
        (b"", "is empty"),
        (b"just a text", "neither can read"),
        (b"PK\x03\x04 cut", "neither can"),
    ):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(ValueError, match=f"readable safetensors .*{reason}"):
            read_weights(tmp_path / "other")
    (tmp_path / "damaged").write_bytes(b"12345678{not a header")
    with pytest.raises(ValueError, match="readable safetensors"):
        read_weights(tmp_path / "damaged")
    for content, found in (
        ([1, 2], "a list"),
        ({"epoch": 3, "lr": 0.1}, "a dictionary with epoch, lr"),
        ({}, "nothing"),
    ):
        torch.save(content, tmp_path / "w.pt")
        with pytest.raises(ValueError, match=f"a state dict, names and their tensors. .*{found}"):
            read_weights(tmp_path / "w.pt")


def test_mismatches_are_listed_shapes_and_names(tmp_path: Path) -> None:
    tensors = state(classes=8)
    torch.save(tensors | {"extra.weight": torch.zeros(2)}, tmp_path / "w.pt")
    with pytest.raises(
        ValueError, match=r"classifier.weight is \[8, 96\], the model's is \[5, 96\]; .*extra.weight is not"
    ):
        load_weights(tmp_path / "w.pt", build("small", 5))


def test_a_classifier_for_other_classes_is_left_out_where_training_starts(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "w.pt")
    model = build("small", 5, weights=str(tmp_path / "w.pt"))
    assert torch.equal(model.state_dict()["features.0.0.0.weight"], state()["features.0.0.0.weight"])
    assert classifier_of(model)[1].out_features == 5
    same = build("small", 8, weights=str(tmp_path / "w.pt"))
    assert torch.equal(classifier_of(same)[1].weight, state()["classifier.weight"])
    del (cut := state())["features.0.0.0.weight"]
    torch.save(cut, tmp_path / "cut.pt")
    with pytest.raises(ValueError, match=r"features.0.0.0.weight is missing"):
        build("small", 5, weights=str(tmp_path / "cut.pt"))
    with pytest.raises(ValueError, match=r"`train.weights` should be a file for small, whose weights are publ"):
        build("small", 5, weights="pretrained")


def test_class_names_come_back_in_order(tmp_path: Path) -> None:
    names = ("zebra", "ant, red", 'an "owl"', "größer")
    checkpoint.save_weights(tmp_path / "w.safetensors", build("small", 4), names)
    assert class_names(tmp_path / "w.safetensors") == names
    load_weights(tmp_path / "w.safetensors", build("small", 4))


@pytest.mark.parametrize("metadata", [None, {"a": "b"}, {"classes": "10"}, {"classes": "[1, 2]"}, {"classes": "["}])
def test_a_file_without_class_names_tells_none(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    safetensors.torch.save_file(state(), tmp_path / "w.safetensors", metadata)
    assert class_names(tmp_path / "w.safetensors") is None


def test_class_names_of_other_files_are_none_and_nothing_is_executed(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "w.pt")
    assert class_names(tmp_path / "w.pt") is None
    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    assert class_names(tmp_path / "evil.pt") is None
    assert not Path("/tmp/shiftcal-was-there").exists()
    (tmp_path / "cut.safetensors").write_bytes(b"\xff\0\0\0\0\0\0\0{")
    assert class_names(tmp_path / "cut.safetensors") is None
    with pytest.raises(ValueError, match="`weights` should be a file"):
        class_names(tmp_path / "missing")
