"""Calibrators in files: read back bit for bit, with what they belong to; anything else is one clear line."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from shiftcal import calibrators
from shiftcal.calibrators import HistogramBinning, TemperatureScaling, VectorScaling
from shiftcal.calibrators.store import KINDS, class_names, read_metadata


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(400, 4, generator=generator)
    return logits, torch.multinomial((logits / 2).softmax(-1), 1, generator=generator).squeeze(1)


def test_every_calibrator_of_the_package_can_be_kept() -> None:
    assert set(KINDS) == set(calibrators.__all__) - {"load", "save"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_back_gives_the_same_bit_for_bit(kind: str, tmp_path: Path) -> None:
    fitted = KINDS[kind]().fit(*data())
    calibrators.save(tmp_path / "c.safetensors", fitted, {"classes": list("abcd"), "fitted_on": "validation images"})
    again = calibrators.load(tmp_path / "c.safetensors")
    assert type(again) is KINDS[kind]
    assert repr(again) == repr(fitted)
    assert torch.equal(again(data(1)[0]), fitted(data(1)[0]))
    described = read_metadata(tmp_path / "c.safetensors")
    assert (described["kind"], described["number_of_classes"]) == (kind, 4)
    assert described["fitted_on"] == "validation images"
    assert class_names(tmp_path / "c.safetensors") == ("a", "b", "c", "d")
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


def test_reading_draws_no_random_numbers(tmp_path: Path) -> None:
    calibrator = calibrators.TemperatureScaling().fit(torch.randn(20, 3), torch.arange(20) % 3)
    calibrators.save(tmp_path / "t.safetensors", calibrator)
    before = torch.get_rng_state()
    calibrators.load(tmp_path / "t.safetensors")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_audits_directory_stands_for_its_calibrator(tmp_path: Path) -> None:
    calibrators.save(tmp_path / "calibrator.safetensors", TemperatureScaling().fit(*data()))
    places = (tmp_path, tmp_path / "calibrator.safetensors", str(tmp_path))
    assert len({calibrators.load(place).temperature for place in places}) == 1
    calibrators.save(str(tmp_path / "again.safetensors"), calibrators.load(tmp_path))
    assert class_names(str(tmp_path / "again.safetensors")) is None
    with pytest.raises(ValueError, match=r"calibrator\.safetensors"):
        calibrators.load(tmp_path.parent)


def test_arguments_are_kept(tmp_path: Path) -> None:
    for fitted in (HistogramBinning(bins=7), TemperatureScaling("ece"), TemperatureScaling(search="lbfgs")):
        calibrators.save(tmp_path / "c", fitted.fit(*data()))
        assert repr(calibrators.load(tmp_path / "c")) == repr(fitted)
    assert class_names(tmp_path / "c") is None


def test_only_fitted_ones_of_this_package_can_be_kept(tmp_path: Path) -> None:
    class Own(TemperatureScaling):
        """Somebody's own."""

    with pytest.raises(ValueError, match="`calibrator` should be fitted"):
        calibrators.save(tmp_path / "c", VectorScaling())
    with pytest.raises(ValueError, match="`calibrator` should be one of HistogramBinning"):
        calibrators.save(tmp_path / "c", Own().fit(*data()))
    assert list(tmp_path.iterdir()) == []


def write(path: Path, tensors: dict[str, torch.Tensor], described: Any) -> None:
    path.write_bytes(safetensors.torch.save(tensors, {"shiftcal": json.dumps(described)}))


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    path, state = tmp_path / "c", VectorScaling().fit(*data()).state_dict()
    good = {"kind": "VectorScaling", "arguments": {}, "number_of_classes": 4}
    bad: list[tuple[dict[str, torch.Tensor], Any]] = [
        (state, None),
        (state, []),
        (state, good | {"kind": "os.system"}),
        (state, good | {"kind": ["VectorScaling"]}),
        (state, good | {"arguments": {"bins": 3}}),
        (state, good | {"arguments": 5}),
        (state, good | {"kind": "HistogramBinning"}),
        ({"weight": state["weight"]}, good),
        (state | {"classes": torch.tensor(5)}, good),
        (state | {"classes": torch.tensor([4, 4])}, good),
        (state | {"weight": state["weight"] * torch.tensor(float("nan"))}, good),
        ({}, good),
    ]
    for tensors, described in bad:
        write(path, tensors, described)
        with pytest.raises(ValueError, match="Parameter `calibrator` should be a") as error:
            calibrators.load(path)
        assert "\n" not in str(error.value)
    write(path, state, good)
    calibrators.load(path)
    whole = path.read_bytes()
    for content in (b"", b"no calibrator", whole[: len(whole) // 2], whole[:-1]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="Parameter `calibrator` should be a"):
            calibrators.load(path)
    with pytest.raises(ValueError, match="audit … --calibrate"):
        calibrators.load(tmp_path / "missing")
    write(path, state, good | {"classes": ["a", "b"]})
    with pytest.raises(ValueError, match="a file with 4 names of classes"):
        class_names(path)
