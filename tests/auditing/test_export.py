"""One file with model and calibrator: it gives what they give, says what it is, and is not written if it does not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shiftcal import calibrators, models
from shiftcal._errors import ExportError
from shiftcal.auditing import export as exporting
from shiftcal.auditing.export import compare, export
from shiftcal.auditing.predictors import Calibrated, Predictor
from shiftcal.calibrators.base import Calibrator
from shiftcal.calibrators.store import KINDS
from shiftcal.inference.open_model import open_model

ABOUT = {
    "outputs": "probabilities",
    "classes": ["a", "b", "c", "d", "e"],
    "preprocessing": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25], "size": 16},
    "calibrator": "some",
}
FAST = [("TemperatureScaling", ".onnx"), ("HistogramBinning", ".pt2")]
SLOW = [(kind, suffix) for kind in KINDS for suffix in (".onnx", ".pt2") if (kind, suffix) not in FAST]


def images(n: int = 40) -> Tensor:
    return torch.randn(n, 3, 16, 16, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A classifier that tells these images apart: its logits are spread like those of a trained one."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace), nn.Dropout(0.5))
        self.head = nn.Linear(8 * 14 * 14, 5)

    def forward(self, images: Tensor) -> Any:
        return {"logits": 6 * self.head(self.body(images).flatten(1))}


def fitted(kind: str, model: nn.Module) -> Calibrator:
    with torch.no_grad():
        logits = model.eval()(images(300))["logits"]
    generator = torch.Generator().manual_seed(2)
    targets = torch.multinomial((logits / 3).softmax(-1), 1, generator=generator).squeeze(1)
    return KINDS[kind]().fit(logits, targets)


def calibrated(kind: str | None = None, outputs: Any = "logits") -> Calibrated:
    model = Net()
    return Calibrated(Predictor(model, outputs), None if kind is None else fitted(kind, model))


@pytest.mark.parametrize(("kind", "suffix"), [*FAST, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)])
def test_every_calibrator_is_part_of_both_formats(kind: str, suffix: str, tmp_path: Path) -> None:
    module, path = calibrated(kind), tmp_path / f"model{suffix}"
    found = export(module, images(), path, ABOUT)
    assert found.difference < 1e-4
    assert (found.images, found.on_steps) == (40, 0)
    opened = open_model(str(path), trust=True)
    assert (opened.outputs, opened.classes, opened.calibrator) == ("probabilities", ("a", "b", "c", "d", "e"), "some")
    assert opened.known == ABOUT["preprocessing"]
    new = torch.randn(7, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        expected = module.calibrator(module.predictor(new)).softmax(-1)
        given = opened.model.eval()(new.to(memory_format=torch.channels_last))
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-4)
        plain = module.predictor(new).softmax(-1)
    assert (expected - plain).abs().max() > 0.02, "a calibrator that does something"
    assert sorted(file.name for file in tmp_path.iterdir()) == [path.name], "one file, and nothing beside it"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_model_of_probabilities_is_exported_through_their_logarithms(suffix: str, tmp_path: Path) -> None:
    class Softmax(Net):
        def forward(self, images: Tensor) -> Any:
            return super().forward(images)["logits"].softmax(-1)

    module = Calibrated(Predictor(Softmax(), "probabilities"), fitted("VectorScaling", Net()))
    assert export(module, images(), tmp_path / f"model{suffix}", ABOUT).difference < 1e-4


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_file_that_disagrees_is_not_left_behind(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"an earlier one")
    write = {".onnx": "_onnx", ".pt2": "_program"}[suffix]
    honest, other = getattr(exporting, write), calibrated("TemperatureScaling")
    monkeypatch.setattr(exporting, write, lambda module, images, metadata: honest(other, images, metadata))
    with pytest.raises(ExportError, match=r"differs from PyTorch by 0\.\d+, more than 0\.0001, on 40 images"):
        export(calibrated(), images(), path, ABOUT)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"an earlier one"


def test_a_model_that_cannot_be_exported_is_one_line(tmp_path: Path) -> None:
    class Branching(Net):
        def forward(self, images: Tensor) -> Any:
            logits = super().forward(images)["logits"]
            return {"logits": logits if float(logits.sum()) > 0 else 2 * logits}

    with pytest.raises(ExportError, match=r"model\.pt2 was not written: PyTorch cannot export this model") as error:
        export(Calibrated(Predictor(Branching())), images(), tmp_path / "model.pt2", ABOUT)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


class Wrong(nn.Module):
    """What gives a module's probabilities for logits that are a little or very different."""

    def __init__(self, module: Calibrated, change: Tensor) -> None:
        super().__init__()
        self.module, self.change = module, change

    def forward(self, images: Tensor) -> Tensor:
        return self.module.from_logits(self.module.predictor(images) + self.change[: len(images)])


def test_rounding_at_a_step_of_the_calibrator_is_told_from_an_error() -> None:
    class Given(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images[:, :2, 0, 0]

    targets = torch.arange(300) % 2
    logits = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)) + 2 * nn.functional.one_hot(targets, 2)
    module = Calibrated(Predictor(Given()), calibrators.HistogramBinning().fit(logits, targets))
    rows = torch.zeros(3, 3, 1, 1)
    edge = float(torch.tensor(10 / 15, dtype=torch.float64).logit())  # of a bin of 15
    rows[:, 0, 0, 0] = torch.tensor([1.0, edge, -1.0])
    beside = [torch.tensor([[0.0, 0.0], [sign * 2e-6, 0.0], [0.0, 0.0]]) for sign in (-1, 1)]
    found = [compare(module, Wrong(module, change), rows) for change in beside]
    assert sorted(one.on_steps for one in found) == [0, 1], "one side of the edge is another bin"
    assert [one.difference for one in found] == [0.0, 0.0]
    for row in range(3):
        change = torch.zeros(3, 2)
        change[row, 0] = -3.0
        really = compare(module, Wrong(module, change), rows)
        assert (really.on_steps, really.difference > 1e-3) == (0, True)


def test_isotonic_regression_finds_the_knots_as_searchsorted_does() -> None:
    x = torch.sort(torch.rand(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).values
    values = torch.cat([x, torch.nextafter(x, x + 1), torch.nextafter(x, x - 1), torch.tensor([-1.0, 2.0]).double()])
    assert torch.equal(torch.bucketize(values, x), torch.searchsorted(x, values))


@pytest.mark.parametrize("name", ["model.pt", "model", "nowhere/model.onnx"])
def test_where_nothing_can_be_written_is_said_first(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Parameter `to` should be a file"):
        export(calibrated(), images(), tmp_path / name, ABOUT)


def test_small_networks_of_ours_have_no_modes_in_a_program(tmp_path: Path) -> None:
    module = Calibrated(Predictor(models.build("small", 5)))
    export(module, images(), tmp_path / "model.pt2", ABOUT)
    program = open_model(str(tmp_path / "model.pt2"), trust=True).model
    with torch.inference_mode():
        torch.testing.assert_close(program.train()(images()), program.eval()(images()))
    with pytest.raises(ValueError, match=r"a trusted one \(--trust\)"):
        open_model(str(tmp_path / "model.pt2"))


def test_a_program_moves_whole_to_a_device(tmp_path: Path) -> None:
    """Bins are made on a device that the program names: it has to be renamed, not only its tensors moved."""
    export(calibrated("HistogramBinning"), images(), tmp_path / "model.pt2", ABOUT)
    program = open_model(str(tmp_path / "model.pt2"), trust=True).model
    with torch.inference_mode():
        before = program(images())
        assert torch.equal(program.to("cpu")(images()), before)
    inside = nn.Sequential(program).to("meta")
    assert all(tensor.is_meta for tensor in inside.state_dict().values())
    named = [node.kwargs["device"] for node in program.program.graph.nodes if "device" in node.kwargs]
    assert named, "this program names devices"
    assert {torch.device(device).type for device in named} == {"meta"}


def test_one_class_that_agrees_excuses_no_other() -> None:
    class Moved(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return module(images) + torch.tensor([0.0, 0.01, -0.01, 0.0, 0.0])

    module = calibrated("HistogramBinning").eval()
    found = compare(module, Moved(), images(6))
    assert found.on_steps == 0
    assert found.difference == pytest.approx(0.01, rel=1e-3)


def test_a_program_that_views_its_input_takes_images_in_any_memory_format(tmp_path: Path) -> None:
    class Viewing(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.view(images.shape[0], -1)[:, ::200]

    export(Calibrated(Predictor(Viewing())), images(), tmp_path / "model.pt2", ABOUT)
    program = open_model(str(tmp_path / "model.pt2"), trust=True).model
    given = program(images().to(memory_format=torch.channels_last))
    torch.testing.assert_close(given, images().flatten(1)[:, ::200].softmax(-1))
