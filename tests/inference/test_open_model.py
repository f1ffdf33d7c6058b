"""Models of other people's: what can be opened gives what it gave them, what cannot is one clear line."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from typer.testing import CliRunner

from shiftcal.cli import app
from shiftcal.inference.open_model import open_model

WEIGHT = np.random.default_rng(0).normal(size=(3 * 8 * 8, 4)).astype(np.float32)
IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def expected(images: Tensor) -> Tensor:
    return images.flatten(1) @ torch.from_numpy(WEIGHT)


def write_onnx(path: Path, *, inputs: dict[str, list[Any]], external: bool = False) -> Path:
    """Write a linear classifier of its first input by hand, with onnx's helpers alone."""
    first = next(iter(inputs))
    nodes = [helper.make_node("Flatten", [first], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["out"])]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = {"save_as_external_data": True, "location": f"{path.name}.data", "size_threshold": 0} if external else {}
    onnx.save(model, path, **options)
    return path


@pytest.mark.parametrize("batch", [1, 2, 5, 7, "batch"])
def test_a_fixed_batch_is_filled_up(batch: int | str, tmp_path: Path) -> None:
    opened = open_model(str(write_onnx(tmp_path / "m.onnx", inputs={"x": [batch, 3, 8, 8]})))
    assert (opened.kind, opened.known, opened.outputs, opened.classes) == ("onnx", {"size": 8}, None, None)
    torch.testing.assert_close(opened.model(IMAGES), expected(IMAGES), rtol=1e-4, atol=1e-4)


def test_a_program_of_a_fixed_batch_says_what_to_do(tmp_path: Path) -> None:
    images = torch.zeros(8, 3, 8, 8)
    program = torch.export.export(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).eval(), (images,))
    torch.export.save(program, tmp_path / "fixed.pt2")
    model = open_model(str(tmp_path / "fixed.pt2"), trust=True).model
    assert model(images).shape == (8, 4)
    with pytest.raises(ValueError, match=r"takes these images. .*\[5, 3, 8, 8\].* dynamic batch"):
        model(images[:5])


def test_weights_beside_an_onnx_file_are_read(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", inputs={"x": ["n", 3, 8, 8]}, external=True)
    assert (tmp_path / "m.onnx.data").stat().st_size >= WEIGHT.nbytes
    torch.testing.assert_close(open_model(str(path)).model(IMAGES), expected(IMAGES), rtol=1e-4, atol=1e-4)
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(ValueError, match=r"a whole ONNX model. Found .*m\.onnx"):
        open_model(str(path))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("external", [False, True])
def test_what_torch_exports_plainly_with_a_batch_of_one(external: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).eval()
    path = tmp_path / "m.onnx"
    torch.onnx.export(model, (IMAGES[:1],), str(path), dynamo=True, external_data=external, verbose=False)
    assert (tmp_path / "m.onnx.data").exists() == external
    opened = open_model(str(path))
    assert opened.model.batch == 1
    with torch.inference_mode():
        torch.testing.assert_close(opened.model(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-5)


class Hostile:
    """A pickle that would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "code ran")


def test_what_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    whole = write_onnx(tmp_path / "whole.onnx", inputs={"x": ["n", 3, 8, 8]}).read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.onnx").write_bytes(b"")
    write_onnx(tmp_path / "two.onnx", inputs={"x": ["n", 3, 8, 8], "y": ["n", 3, 8, 8]})
    write_onnx(tmp_path / "text.onnx", inputs={"tokens": ["n", 192]})
    (tmp_path / "hostile.pt").write_bytes(pickle.dumps(Hostile(tmp_path / "ran"), protocol=2))
    torch.save({"state_dict": {"w": torch.zeros(1)}, "more": Hostile(tmp_path / "ran")}, tmp_path / "hidden.pt")
    (tmp_path / "cut.pt2").write_bytes(whole)
    said = {
        "cut.onnx": "a whole ONNX model",
        "empty.onnx": "a whole ONNX model",
        "two.onnx": "one input, images [N, 3, H, W]",
        "text.onnx": "one input, images [N, 3, H, W]",
        "hostile.pt": "tensors alone saved by torch",
        "hidden.pt": "tensors alone saved by torch",
        "cut.pt2": "a whole torch.export program",
        "none.onnx": "a run's directory, a checkpoint, timm/NAME",
    }
    for name, words in said.items():
        command = ["audit", str(tmp_path / name), "--model", "small", "--data", "demo", "--out", str(tmp_path / "out")]
        result = CliRunner().invoke(app, [*command, "--trust"])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), (name, result.stderr, result.exception)
        assert words in result.stderr, name
    assert not (tmp_path / "ran").exists(), "nothing in a file was executed"
