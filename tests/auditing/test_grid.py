"""Evaluation against the metrics applied by hand, on a model with batch-norm and dropout."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from shiftcal import corrupt, data, evaluate, metrics
from shiftcal.augment import augmix
from shiftcal.calibrators import TemperatureScaling
from shiftcal.records import METRICS, Cell


class Net(nn.Module):
    """A fixed random classifier that answers differently in training mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.AvgPool2d(8), nn.Flatten(), nn.BatchNorm1d(48), nn.Dropout(0.5), nn.Linear(48, 8)
        )
        with torch.no_grad():
            self.layers[4].weight *= 8

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def logits(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        answer = model((images.float() / 255 - 0.5) / 0.25)
    model.train()
    return answer.double()


@pytest.fixture(scope="module")
def setting() -> tuple[nn.Module, data.Dataset]:
    """A model, and data whose classes are drawn so that validation and test want different temperatures."""
    model, dataset = Net(), data.load("shapes", train=8, validation=80, test=48)

    def relabel(split: data.MemorySplit, temperature: float) -> data.MemorySplit:
        p = (logits(model, split.images) / temperature).softmax(-1)
        generator = torch.Generator().manual_seed(0)
        return data.MemorySplit(split.images, torch.multinomial(p, 1, generator=generator).squeeze(1))

    return model, dataclasses.replace(
        dataset, validation=relabel(dataset.validation, 2.5), test=relabel(dataset.test, 0.8)
    )


@pytest.mark.parametrize("criterion", ["nll", "ece"])
def test_every_row_is_the_metrics_on_its_images(setting: tuple[nn.Module, data.Dataset], criterion: Any) -> None:
    model, d = setting
    result = evaluate(
        model,
        d,
        corruptions=["gaussian_blur", "contrast"],
        constants="imagenet",
        bins=10,
        temperature_criterion=criterion,
        batch_size=20,
        progress=False,
    )
    assert model.training, "the model's mode is restored"
    on_validation, on_test = (
        TemperatureScaling(criterion).fit(logits(model, s.images), s.targets).temperature
        for s in (d.validation, d.test)
    )
    assert result.temperatures["clean"] == on_validation != on_test
    everything = {"clean", "augmix 1", "augmix 3", "augmix 5", "augmix 10", "shift_aware"}
    assert set(result.temperatures) == everything

    def check(row: Cell, split: data.MemorySplit) -> None:
        z = logits(model, split.images)
        p, scaled = z.softmax(-1), (z / on_validation).softmax(-1)
        for name in ("ece", "mce", "classwise_ece", "adaptive_ece"):
            assert getattr(row, name) == pytest.approx(getattr(metrics, name)(p, split.targets, bins=10), abs=1e-6)
        for name in ("accuracy", "nll", "brier"):
            assert getattr(row, name) == pytest.approx(getattr(metrics, name)(p, split.targets), abs=1e-5)
        assert row.scaled["clean"].ece == pytest.approx(metrics.ece(scaled, split.targets, bins=10), abs=1e-6)
        assert row.scaled["clean"].nll == pytest.approx(metrics.nll(scaled, split.targets), abs=1e-6)
        assert row.smooth_ece == pytest.approx(metrics.smooth_ece(p, split.targets), abs=1e-6)
        meter = metrics.CalibrationMeter(8, 10)
        meter.update(p, split.targets)
        assert list(row.bins.count) == meter.reliability()["count"]
        assert row.n == len(split.targets)
        confidence, prediction = p.max(1)
        right = confidence[prediction == split.targets]
        assert sum(row.histogram.wrong) == len(p) - len(right)
        assert list(row.histogram.right) == torch.histc(right, 100, 0, 1).long().tolist()

    check(result.clean, d.test)
    check(result.validation, d.validation)
    rows = {(cell.shift, cell.severity): cell for cell in result.shifts}
    assert list(rows) == [(name, s) for name in ("texture", "gaussian_blur", "contrast") for s in (1, 2, 3, 4, 5)]
    for (name, s), row in rows.items():
        if name == "texture":
            check(row, d.shifts["texture"][s - 1])
        else:
            check(row, data.MemorySplit(corrupt(d.test.images, name, s, constants="imagenet"), d.test.targets))
    mean = result.shifted
    for name in METRICS:
        assert mean.value(name) == pytest.approx(sum(cell.value(name) for cell in result.shifts) / 15)
        for key in (f"clean/{name}", f"shift_aware/{name}"):
            assert mean.value(key) == pytest.approx(sum(cell.value(key) for cell in result.shifts) / 15)
    assert len(result.reliability.clean.count) == 10
    assert sum(result.reliability.shifted.count) == 15 * 48
    assert len(result.reliability.clean_by_class) == len(result.reliability.shifted_by_class) == 8
    assert sum(result.reliability.shifted_by_class[3].count) == 15 * 48


def test_the_shift_aware_temperature_is_fitted_to_clean_and_augmented_validation_images(
    setting: tuple[nn.Module, data.Dataset],
) -> None:
    model, d = setting
    result = evaluate(model, d, batch_size=80, progress=False)
    seen = [logits(model, d.validation.images)]
    for strength in (1.0, 3.0, 5.0, 10.0):
        generator = torch.Generator().manual_seed(round(10 * strength))
        views = augmix(d.validation.images, generator, views=1, severity=strength)[0].round().to(torch.uint8)
        seen.append(logits(model, views))
        alone = TemperatureScaling().fit(seen[-1], d.validation.targets).temperature
        assert result.temperatures[f"augmix {strength:g}"] == alone
    both = TemperatureScaling().fit(torch.cat(seen), d.validation.targets.repeat(5)).temperature
    assert result.temperatures["shift_aware"] == both != result.temperatures["clean"]
    scaled = (logits(model, d.test.images) / both).softmax(-1)
    assert result.clean.value("shift_aware/ece") == pytest.approx(metrics.ece(scaled, d.test.targets), abs=1e-6)
    plain = evaluate(model, d, temperatures=("clean",), histograms=False, progress=False)
    assert list(plain.clean.scaled) == ["clean"]
    assert plain.clean.histogram is None


def test_without_shifts_there_is_no_mean(setting: tuple[nn.Module, data.Dataset]) -> None:
    model, d = setting
    result = evaluate(model, dataclasses.replace(d, shifts={}), progress=False)
    assert result.shifts == ()
    assert result.shifted is None
    assert result.reliability.shifted is None


def test_other_tests_are_reported_and_left_out_of_the_mean(setting: tuple[nn.Module, data.Dataset]) -> None:
    model, d = setting
    plain = evaluate(model, d, corruptions=["contrast"], progress=False)
    result = evaluate(
        model, dataclasses.replace(d, other_tests={"val": d.validation}), corruptions=["contrast"], progress=False
    )
    assert result.other_tests == {"val": plain.validation}
    assert result.shifted == plain.shifted
    assert plain.other_tests == {}


@pytest.mark.slow
def test_corruptions_do_not_depend_on_the_batch_size(setting: tuple[nn.Module, data.Dataset], tmp_path: Path) -> None:
    model, d = setting
    first, second = (evaluate(model, d, corruptions=["gaussian_noise"], batch_size=n, progress=False) for n in (7, 48))
    for one, other in zip(first.shifts, second.shifts, strict=True):
        assert one.nll == pytest.approx(other.nll, rel=1e-5)
    assert not first.clean_is_validation
    assert evaluate(model, dataclasses.replace(d, test=d.validation), progress=False).clean_is_validation
    Image.new("RGB", (400, 400), (255, 255, 255)).save(tmp_path / "frost1.png")
    drawn, white = (
        evaluate(model, d, corruptions=["frost"], frost=f, progress=False).shifts for f in ("drawn", str(tmp_path))
    )
    assert drawn != white
    images = corrupt(d.test.images, "frost", 1, frost=str(tmp_path))
    expected = metrics.ece(logits(model, images).softmax(-1), d.test.targets)
    row = next(cell for cell in white if (cell.shift, cell.severity) == ("frost", 1))
    assert row.ece == pytest.approx(float(expected), rel=1e-4)
