"""Evaluation against the metrics applied by hand, on a model with batch-norm and dropout."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from shiftcal import corrupt, data, evaluate, metrics
from shiftcal.calibrators import TemperatureScaling


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

    def relabel(split: data.Split, temperature: float) -> data.Split:
        p = (logits(model, split.images) / temperature).softmax(-1)
        generator = torch.Generator().manual_seed(0)
        return data.Split(split.images, torch.multinomial(p, 1, generator=generator).squeeze(1))

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
    assert result["temperature"] == on_validation != on_test

    def check(row: dict[str, float], split: data.Split) -> None:
        z = logits(model, split.images)
        p, scaled = z.softmax(-1), (z / on_validation).softmax(-1)
        for name in ("ece", "mce", "classwise_ece", "adaptive_ece"):
            assert row[name] == pytest.approx(getattr(metrics, name)(p, split.targets, bins=10), abs=1e-6)
        for name in ("accuracy", "nll", "brier"):
            assert row[name] == pytest.approx(getattr(metrics, name)(p, split.targets), abs=1e-5)
        assert row["ece_ts"] == pytest.approx(metrics.ece(scaled, split.targets, bins=10), abs=1e-6)
        assert row["ece_ts"] == row["scaled"]["clean"]["ece"]
        assert row["scaled"]["clean"]["nll"] == pytest.approx(metrics.nll(scaled, split.targets), abs=1e-6)
        assert row["smooth_ece"] == pytest.approx(metrics.smooth_ece(p, split.targets), abs=1e-6)
        meter = metrics.CalibrationMeter(8, 10)
        meter.update(p, split.targets)
        assert row["bins"]["count"] == meter.reliability()["count"]
        assert row["n"] == len(split.targets)
        confidence, prediction = p.max(1)
        right = confidence[prediction == split.targets]
        assert sum(row["histogram"]["wrong"]) == len(p) - len(right)
        assert row["histogram"]["right"] == torch.histc(right, 100, 0, 1).long().tolist()

    check(result["id"], d.test)
    check(result["validation"], d.validation)
    rows = {(row["shift"], row["severity"]): row for row in result["shifts"]}
    assert list(rows) == [(name, s) for name in ("texture", "gaussian_blur", "contrast") for s in (1, 2, 3, 4, 5)]
    for (name, s), row in rows.items():
        if name == "texture":
            check(row, d.shifts["texture"][s - 1])
        else:
            check(row, data.Split(corrupt(d.test.images, name, s, constants="imagenet"), d.test.targets))
    mean = result["shifted"]
    for name in ("accuracy", "nll", "brier", "ece", "mce", "classwise_ece", "adaptive_ece", "smooth_ece", "ece_ts"):
        assert mean[name] == pytest.approx(sum(row[name] for row in result["shifts"]) / 15)
        for kind in ("clean", "shift_aware") if name != "ece_ts" else ():
            of_rows = sum(row["scaled"][kind][name] for row in result["shifts"]) / 15
            assert mean["scaled"][kind][name] == pytest.approx(of_rows)
    assert set(mean) == {*result["id"]} - {"n", "bins", "histogram"}
    assert len(result["reliability"]["id"]["count"]) == 10
    assert sum(result["reliability"]["shifted"]["count"]) == 15 * 48


def test_without_shifts_there_is_no_mean(setting: tuple[nn.Module, data.Dataset]) -> None:
    model, d = setting
    result = evaluate(model, dataclasses.replace(d, shifts={}), progress=False)
    assert result["shifts"] == []
    assert result["shifted"] is None
    assert result["reliability"]["shifted"] is None


def test_sets_besides_are_reported_and_left_out_of_the_mean(setting: tuple[nn.Module, data.Dataset]) -> None:
    model, d = setting
    plain = evaluate(model, d, corruptions=["contrast"], progress=False)
    result = evaluate(
        model, dataclasses.replace(d, besides={"val": d.validation}), corruptions=["contrast"], progress=False
    )
    assert result["besides"] == {"val": plain["validation"]}
    assert result["shifted"] == plain["shifted"]
    assert plain["besides"] == {}


def test_corruptions_do_not_depend_on_the_batch_size(setting: tuple[nn.Module, data.Dataset], tmp_path: Path) -> None:
    model, d = setting
    first, second = (evaluate(model, d, corruptions=["gaussian_noise"], batch_size=n, progress=False) for n in (7, 48))
    for one, other in zip(first["shifts"], second["shifts"], strict=True):
        assert one["nll"] == pytest.approx(other["nll"], rel=1e-5)
    assert first["id_is_validation"] is False
    assert evaluate(model, dataclasses.replace(d, test=d.validation), progress=False)["id_is_validation"] is True
    Image.new("RGB", (400, 400), (255, 255, 255)).save(tmp_path / "frost1.png")
    drawn, white = (
        evaluate(model, d, corruptions=["frost"], frost=f, progress=False)["shifts"] for f in ("drawn", str(tmp_path))
    )
    assert drawn != white
    images = corrupt(d.test.images, "frost", 1, frost=str(tmp_path))
    expected = metrics.ece(logits(model, images).softmax(-1), d.test.targets)
    row = next(row for row in white if (row["shift"], row["severity"]) == ("frost", 1))
    assert row["ece"] == pytest.approx(float(expected), rel=1e-4)
