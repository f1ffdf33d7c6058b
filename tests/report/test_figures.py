"""Every figure's data, and that figures become files that do not change."""

import io
import math
import zipfile
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import BINS, held_out, metrics, record
from PIL import Image
from pydantic import Field
from typer.testing import CliRunner

from shiftcal.analysis.conflicts import Curves
from shiftcal.cli import app
from shiftcal.records import Epoch, RunRecord, write_record
from shiftcal.records.arrays import Arrays, read_arrays, write_arrays
from shiftcal.report.figures import (
    boxes,
    conflicts,
    coverage,
    gradcam,
    heat,
    noise,
    reliability,
    sensitivity,
    severity,
    strips,
    temperature,
    tradeoff,
    training,
    wasserstein,
)
from shiftcal.report.figures.canvas import bytes_of, colours_of, save
from shiftcal.report.studies import STUDIES, Material, make_study, write_study


def with_config(r: RunRecord, **config: Any) -> RunRecord:
    return r.model_copy(update={"config": r.config | config})


def swept(method: str, seed: int, ece: float, ratio: float, quality: int = 15) -> RunRecord:
    return with_config(
        record(method, seed, ece), filter={"ratio": ratio, "qualities": [quality]}, method=method, seed=seed
    )


@pytest.fixture
def records() -> list[RunRecord]:
    return [record("fgr", 0, 0.05), record("ce", 0, 0.2), record("ce", 1, 0.3), record("fgr", 1, 0.07)]


# What each figure shows.


def test_boxes_are_over_shifts_after_the_mean_over_seeds(records: list[RunRecord]) -> None:
    found = {(b.method, b.metric, b.severity): b for b in boxes.box_data(records)}
    assert {key[2] for key in found} == {0, 1, 2}
    assert found["ce", "ece", 0].values == pytest.approx((2.5,)), "clean is a tenth"
    assert found["ce", "ece", 2].values == pytest.approx((50.0, 50.0)), "fog and snow, mean of both seeds"
    box = boxes.Box("ce", "ece", 1, (1.0, 2.0, 4.0, 8.0, 5.0))
    assert box.quartiles == tuple(np.quantile(box.values, [0.25, 0.5, 0.75]))
    assert box.mean == 4
    assert list(dict.fromkeys(b.method for b in boxes.box_data(records))) == ["ce", "fgr"], "the order of METHODS"


def test_reliability_pools_seeds_and_averages_ece(records: list[RunRecord]) -> None:
    clean, shifted = reliability.reliability_data(records)
    assert [panel.label for panel in clean] == ["ce", "fgr"]
    assert shifted[0].ece == pytest.approx(0.25)
    assert shifted[0].bins.count == (0, 8, 12)
    assert shifted[0].bins.accuracy == pytest.approx((0, 0.5, 1.0))
    without = [r.model_copy(update={"evaluation": _without_shifted(r)}) for r in records]
    assert len(reliability.reliability_data(without)) == 1


def _without_shifted(r: RunRecord) -> Any:
    return r.evaluation.model_copy(
        update={"reliability": r.evaluation.reliability.model_copy(update={"shifted": None})}
    )


def test_curves_by_severity_begin_with_clean(records: list[RunRecord]) -> None:
    first = severity.severity_data(records)[0]
    assert (first.method, first.shift) == ("ce", None)
    assert first.mean == pytest.approx([0.025, 0.25, 0.5])
    assert first.by_seed[1] == pytest.approx((0.03, 0.3, 0.6))


def test_shifts_without_severities_are_bars() -> None:
    values = {("ce", 0): (0.2, 0.4), ("ce", 1): (0.3, 0.5), ("fgr", 0): (0.1, 0.2)}
    records = [
        held_out(method, seed, domain, value, 0.05)
        for (method, seed), both in values.items()
        for domain, value in zip(("sketch", "photo"), both, strict=True)
    ]
    curves = severity.severity_data(records)
    assert [c.by_seed for c in curves if c.method == "ce"] == [
        (pytest.approx((0.05, 0.3)), pytest.approx((0.05, 0.4))),  # of each seed the mean over both domains
        (pytest.approx((0.05, 0.2)), pytest.approx((0.05, 0.3))),
        (pytest.approx((0.05, 0.4)), pytest.approx((0.05, 0.5))),
    ]
    [axis] = severity.draw_severity(curves).axes
    assert [bar.get_height() for bar in axis.patches] == pytest.approx([35, 15, 25, 10, 45, 20])
    assert [label.get_text() for label in axis.get_xticklabels()] == ["mean over shifts", "sketch", "photo"]
    assert [text.get_text() for text in axis.texts] == ["35.0", "15.0", "25.0", "10.0", "45.0", "20.0"]
    assert len({bar.get_facecolor() for bar in axis.patches}) == 2
    centres = [bar.get_x() + bar.get_width() / 2 for bar in axis.patches]
    assert centres == sorted(centres)
    whisker = next(line for line in axis.lines if len(line.get_xdata()) and line.get_xdata()[0] == line.get_xdata()[1])
    assert list(whisker.get_ydata()) == pytest.approx([30, 40])


def test_severities_are_whole_numbers_below_each_column() -> None:
    shifts = [{"shift": f"s{n}", "severity": k, **metrics(0.1 * k)} for n in range(4) for k in (1, 2)]
    figure = severity.draw_severity(severity.severity_data([record("ce", 0, 0.1, shifts=shifts)]))
    figure.canvas.draw()
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert len(shown) == 5
    for axis in shown[1:]:  # the first has another one below it
        (low, high), labels = axis.get_xlim(), axis.get_xticklabels()
        inside = [label for label in labels if low <= label.get_position()[0] <= high]
        assert [label.get_text() for label in inside if label.get_visible()] == ["0", "1", "2"]


def with_bins(ece: float, after: float) -> dict[str, Any]:
    scaled = {"ece": after, "bins": BINS | {"accuracy": [0.0, 0.25, 0.5]}}
    return metrics(ece) | {"bins": BINS, "scaled": {"clean": scaled}}


def test_temperature_shows_bins_before_and_after(records: list[RunRecord]) -> None:
    shifts = [{"shift": "fog", "severity": k, **with_bins(0.1 * k, 0.01 * k)} for k in (1, 2)]
    made = [record("ce", seed, 0.1, clean=with_bins(0.1, 0.02), shifts=shifts) for seed in (0, 1)]
    rows = temperature.temperature_data(made)
    assert [row[0].ece for row in rows] == pytest.approx([0.1, 0.02, 0.15, 0.015])
    assert rows[2][0].bins.count == (0, 16, 24), "two seeds, two severities"
    assert rows[3][0].bins.accuracy == pytest.approx((0, 0.25, 0.5))
    assert [row[0].note for row in rows] == ["as trained, ", "with T, "] * 2
    with pytest.raises(ValueError, match="temperature"):
        temperature.temperature_data(made, "shift_aware")
    with pytest.raises(ValueError, match="bins of each test set"):
        temperature.temperature_data(records)


class EpochWithTest(Epoch):
    test: dict[str, dict[str, float]] = Field(default_factory=dict)


def epochs(rates: list[float], start: int = 2, **more: Any) -> tuple[EpochWithTest, ...]:
    common = {"loss": 1.0, "accuracy": 0.5, "seconds": 1.0, **more}
    before = [EpochWithTest(epoch=k, **common) for k in range(1, start)]
    after = [EpochWithTest(epoch=start + k, conflict_rate=r, mean_cosine=-r, **common) for k, r in enumerate(rates)]
    return tuple(before + after)


def test_conflicts_are_averaged_over_seeds_and_methods_without_them_left_out() -> None:
    test = {"clean": {"accuracy": 0.9, "ece": 0.02}, "shifted": {"accuracy": 0.6, "ece": 0.2}}
    made = [
        record("fgr", 0, 0.1).model_copy(update={"history": epochs([0.2, 0.4], test=test)}),
        record("fgr", 1, 0.1).model_copy(update={"history": epochs([0.4, 0.8], test=test)}),
        record("ce", 0, 0.1).model_copy(update={"history": epochs([])}),
    ]
    (line,) = conflicts.conflict_data(made)
    assert line.label == "fgr"
    assert line.rate.epochs == (2, 3)
    assert line.rate.values == pytest.approx((0.3, 0.6))
    assert line.cosine.values == pytest.approx((-0.3, -0.6))
    assert line.measured["shifted"]["ece"] == Curves((1, 2, 3), (0.2, 0.2, 0.2))
    with pytest.raises(ValueError, match="with a constraint"):
        conflicts.conflict_data(made[2:])


def test_curves_are_averaged_over_shared_epochs() -> None:
    one, other = Curves((1, 2, 3), (1.0, 2.0, 3.0)), Curves((2, 3, 4), (4.0, 5.0, 6.0))
    assert conflicts.mean_curve([one, other]) == Curves((2, 3), (3.0, 4.0))
    assert conflicts.since(one, 1.5) == Curves((2, 3), (2.0, 3.0))


def test_runs_that_differ_in_more_than_the_seed_are_not_averaged() -> None:
    made = [swept("fgr", seed, 0.1, ratio) for seed, ratio in ((0, 0.1), (1, 0.2))]
    made = [r.model_copy(update={"history": epochs([0.2, 0.4])}) for r in made]
    for data in (conflicts.conflict_data, training.training_data, boxes.box_data, coverage.coverage_data):
        with pytest.raises(ValueError, match=r"method and seed alone. .*filter.ratio"):
            data(made)


def test_training_curves_are_means_over_seeds() -> None:
    made = [
        record("ce", seed, 0.1).model_copy(update={"history": epochs([], start=3, loss=loss, validation={"ece": 0.1})})
        for seed, loss in ((0, 1.0), (1, 2.0))
    ]
    (line,) = training.training_data(made)
    assert line.loss == Curves((1, 2), (1.5, 1.5))
    assert line.measured["validation"]["ece"].values == pytest.approx((0.1, 0.1))
    with pytest.raises(ValueError, match="history"):
        training.training_data([made[0].model_copy(update={"history": ()})])


def test_sensitivity_collects_values_of_the_key_that_differs() -> None:
    made = [swept("fgr", seed, ece, ratio) for seed in (0, 1) for ratio, ece in ((0.1, 0.2 + seed / 10), (0.03, 0.1))]
    assert list(sensitivity.keys_in(made)) == ["filter.ratio"]
    low, high = sensitivity.sensitivity_data(made, "filter.ratio")
    assert (low.value, high.value) == (0.03, 0.1)
    assert high.metrics["shifted", "ece"] == pytest.approx((0.2, 0.3))
    assert high.mean("shifted", "ece") == pytest.approx(0.25)
    assert high.deviation("shifted", "ece") == pytest.approx(math.sqrt(0.005))
    assert low.metrics["clean", "ece"] == pytest.approx((0.01, 0.01))
    by_quality = [swept("fgr", 0, 0.1, 0.05, quality) for quality in (15, 25)]
    assert list(sensitivity.keys_in(by_quality)) == ["filter.qualities"]
    assert [p.value for p in sensitivity.sensitivity_data(by_quality, "filter.qualities")] == [15, 25]


def test_sensitivity_refuses_what_it_cannot_compare() -> None:
    both = [swept("fgr", 0, 0.1, 0.05, 15), swept("fgr", 0, 0.1, 0.1, 25)]
    with pytest.raises(ValueError, match=r"one numeric key. .*filter.qualities, filter.ratio"):
        sensitivity.keys_in(both)
    with pytest.raises(ValueError, match=r"filter.ratio and the seed alone. .*filter.qualities"):
        sensitivity.sensitivity_data(both, "filter.ratio")
    twice = [swept("fgr", 0, 0.1, ratio) for ratio in (0.1, 0.05, 0.05)]
    with pytest.raises(ValueError, match="one run for each value and seed"):
        sensitivity.sensitivity_data(twice, "filter.ratio")
    with pytest.raises(ValueError, match="numeric key that all records have"):
        sensitivity.sensitivity_data(twice, "filter.shape")
    with pytest.raises(ValueError, match="differ in seed alone"):
        sensitivity.keys_in([swept("fgr", seed, 0.1, 0.1) for seed in (0, 1)])


def test_data_sets_are_lines_of_their_own() -> None:
    made = [
        with_config(swept("fgr", 0, 0.1, ratio), data={"name": name})
        for name in ("cifar10", "cifar100")
        for ratio in (0.05, 0.1)
    ]
    points = sensitivity.sensitivity_data(made, "filter.ratio")
    assert len({point.label for point in points}) == 2
    assert len(set(sensitivity.line_colours([p.label for p in points][::2]).values())) == 2


def test_heat_maps_have_rows_of_ratios_and_columns_of_qualities() -> None:
    made = [
        swept("fgr", seed, ratio + quality / 100 + seed / 10, ratio, quality)
        for seed in (0, 1)
        for ratio in (0.1, 0.03)
        for quality in (25, 15)
        if (ratio, quality) != (0.1, 25)
    ]
    found = heat.heat_data(made)
    assert (found.rows, found.columns) == ((0.03, 0.1), (15, 25))
    assert found.values["shifted", "ece"][0] == pytest.approx((0.03 + 0.15 + 0.05, 0.03 + 0.25 + 0.05))
    assert found.values["shifted", "ece"][1][1] is None
    with pytest.raises(ValueError, match="several values"):
        heat.heat_data([r for r in made if r.config["filter"]["ratio"] == 0.03])
    with pytest.raises(ValueError, match="of one method"):
        heat.heat_data([*made, record("ce", 0, 0.1)])


def at(method: str, seed: int, accuracy: float, ece: float) -> RunRecord:
    """A record with the same accuracy and ECE under shift, and one point better in both on clean images."""
    return record(method, seed, ece, clean=metrics(ece - 0.01, accuracy + 0.01), shifted=metrics(ece, accuracy))


def test_a_tradeoff_has_a_point_for_each_method() -> None:
    made = [at("fgr", 0, 0.8, 0.1), at("ce", 0, 0.7, 0.2), at("fgr", 1, 0.84, 0.06)]
    points = tradeoff.tradeoff_data(made)
    assert [(p.method, p.part) for p in points] == [(m, p) for p in ("clean", "shifted") for m in ("ce", "fgr")]
    assert points[1].place == pytest.approx((83, 7))
    assert points[3].place == pytest.approx((82, 8))
    assert points[3].spread == pytest.approx((math.sqrt(8), math.sqrt(8)))
    assert points[2].spread == (0, 0)
    alone = tradeoff.tradeoff_data([record("ce", 0, 0.1, shifted=None, shifts=[])])
    assert [p.part for p in alone] == ["clean"]


def test_the_frontier_is_of_methods_that_none_dominates() -> None:
    places = {"ce": (70, 20), "dfl": (70, 12), "fgr": (80, 8), "mixup": (75, 8), "ls": (82, 9), "augmix": (60, 7)}
    points = [tradeoff.Point(m, "shifted", (x,), (y,)) for m, (x, y) in places.items()]
    assert [p.method for p in tradeoff.frontier(points)] == ["ls", "fgr", "augmix"]


def test_names_of_points_that_lie_together_do_not() -> None:
    names = ["ce", "dfl", "fgr", "mixup", "weighted-sum", "filter-only"]
    made = [at(m, 0, 0.8 + k / 1e4, 0.1) for k, m in enumerate(names)] + [at("ls", 0, 0.6, 0.2)]
    figure = tradeoff.draw_tradeoff(tradeoff.tradeoff_data(made))
    for axis in figure.axes:
        found = [text.get_window_extent() for text in axis.texts if text.get_text()]
        assert len(found) == 7
        assert not any(one.overlaps(other) for one, other in combinations(found, 2))


def test_risk_rises_from_the_surest_step() -> None:
    histogram = {"right": [1, 0, 3, 4], "wrong": [3, 0, 1, 0]}
    shifts = [{"shift": "fog", "severity": k, **metrics(0.1), "histogram": histogram} for k in (1, 2)]
    made = [record("ce", 0, 0.1, clean=metrics(0.1) | {"histogram": histogram}, shifts=shifts)]
    clean, shifted = coverage.coverage_data(made)
    assert clean.coverage == pytest.approx((4 / 12, 8 / 12, 1))
    assert clean.risk == pytest.approx((0, 1 / 8, 4 / 12))
    assert shifted.risk == pytest.approx(clean.risk), "two sets alike"
    assert clean.area == pytest.approx((0 + 1 / 8) / 2 / 3 + (1 / 8 + 1 / 3) / 2 / 3)
    with pytest.raises(ValueError, match="histograms"):
        coverage.coverage_data([record("ce", 0, 0.1)])


# Arrays.


def cams(models: int = 2, n: int = 3, **changes: Any) -> Arrays:
    rng = np.random.default_rng(0)
    arrays = {
        "images": rng.integers(0, 256, (n, 8, 10, 3), dtype=np.uint8),
        "targets": np.array([0, 1, 1][:n]),
        "maps": rng.random((models, n, 8, 10)).astype(np.float16),
        "predicted": np.zeros((models, n), dtype=np.int64),
        "confidence": np.full((models, n), 0.75, dtype=np.float32),
    }
    labels = {"runs": ["ce", "fgr"][:models], "classes": ["cat", "dog"], "shift": "fog 3"}
    return Arrays("gradcam", arrays | changes, labels)


def test_cams_tell_predictions_by_name() -> None:
    found = gradcam.cam_data(cams())
    assert found.classes == ("cat", "dog", "dog")
    assert [look.right for look in found.looks[0]] == [True, False, False]
    assert found.looks[1][0].predicted == "cat"
    assert found.looks[1][2].map.shape == (8, 10)
    with pytest.raises(ValueError, match=r"`maps` of shape \[2, 3, 8, 10\]"):
        gradcam.cam_data(cams(maps=np.zeros((2, 3, 8, 9))))
    with pytest.raises(ValueError, match="finite"):
        gradcam.cam_data(cams(confidence=np.full((2, 3), np.nan)))


def test_arrays_that_no_figure_could_show_are_refused() -> None:
    many = {
        name: np.repeat(array, 100, axis=int(name in ("maps", "predicted", "confidence")))
        for name, array in cams(n=1).arrays.items()
    }
    with pytest.raises(ValueError, match="1 to 64 images"):
        gradcam.cam_data(cams(**many))
    with pytest.raises(ValueError, match="1 to 64 images"):
        strips.strip_data(Arrays("strips", {"images": np.zeros((2, 0, 8, 8, 3)), "qualities": np.array([5])}, {}))
    with pytest.raises(ValueError, match="1 to 64 runs"):
        noise.noise_data(Arrays("noise", {}, {"runs": [], "scopes": ["all"]}))
    with pytest.raises(ValueError, match="a list of names `scopes`"):
        noise.noise_data(Arrays("noise", {}, {"runs": ["a"], "scopes": 3}))
    with pytest.raises(ValueError, match="a number `ratio`"):
        wasserstein.distance_data(Arrays("features", {}, {"runs": ["a"], "ratio": True}))


@pytest.mark.parametrize("value", [None, "wide", [1, 2], {"a": 1}, True, float("nan"), 10**400])
def test_configs_from_elsewhere_are_refused_in_one_line(value: Any) -> None:
    strange = [with_config(record("fgr", k, 0.1), filter={"ratio": value}, train=value) for k in (0, 1)]
    for data in (lambda r: sensitivity.sensitivity_data(r, "filter.ratio"), heat.heat_data):
        with pytest.raises(ValueError, match=r"numeric key|several values|seed alone") as caught:
            data(strange)
        assert "\n" not in str(caught.value)
    assert strips.panels_by_quality(strange) == []


def features(shifts: int = 2) -> Arrays:
    arrays = {
        "qualities": np.array([25, 15]),
        "ratios": np.array([0.05, 0.1, 0.2]),
        "by_quality": np.array([[0.1, 0.2], [0.3, 0.4]]),
        "by_ratio": np.array([[0.1, 0.2, 0.3], [0.3, 0.4, 0.5]]),
        "by_shift": np.arange(2.0 * shifts).reshape(2, shifts),
    }
    labels = {"runs": ["ce", "fgr"], "shifts": ["fog 3", "gaussian_noise 3"][:shifts], "quality": 15, "ratio": 0.1}
    return Arrays("features", arrays, labels)


def test_distances_are_tables_by_quality_ratio_and_shift() -> None:
    by_quality, by_ratio, by_shift = wasserstein.distance_data(features())
    assert by_quality.values == ("25", "15")
    assert by_quality.by_model["fgr"] == (0.3, 0.4)
    assert by_ratio.title.endswith("λ = 15")
    assert by_shift.by_model["ce"] == (0.0, 1.0)
    text = wasserstein.distances_markdown([by_quality])
    assert "| λ | 25 | 15 |" in text
    assert "| fgr | 0.300 | 0.400 |" in text
    assert r"ce & 0.100 & 0.200 & 0.300 \\" in wasserstein.distances_latex([by_ratio])
    assert r"gaussian\_noise 3" in wasserstein.distances_latex([by_shift])
    assert len(wasserstein.distance_data(features(shifts=0))) == 2


def noises() -> Arrays:
    arrays = {f"{name}{end}": np.full((2, 2), 0.25) for name in noise.MEASURED for end in ("", "_error")}
    arrays["cosine"] = np.array([[0.1, 0.2], [0.3, 0.4]])
    return Arrays("noise", arrays, {"runs": ["ce", "fgr"], "scopes": ["all", "classifier"]})


def test_noise_is_told_by_run_and_scope() -> None:
    found = {(bar.run, bar.scope): bar for bar in noise.noise_data(noises())}
    assert found["fgr", "all"].means["cosine"] == 0.3
    assert found["ce", "classifier"].errors["norm"] == 0.25


def strip_arrays() -> Arrays:
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 8, 8, 3), dtype=np.uint8)
    return Arrays("strips", {"images": images, "qualities": np.array([25, 5])}, {})


def test_strips_show_images_and_reliability_by_quality() -> None:
    made = [swept("fgr", seed, q / 100, 0.1, q) for seed in (0, 1) for q in (5, 25)]
    found = strips.strip_data(strip_arrays(), made)
    assert found.labels == ("untouched", "λ = 25", "λ = 5")
    assert np.array_equal(found.rows[2][3], strip_arrays().arrays["images"][2, 3])
    assert [panel.label for panel in found.panels] == ["λ = 25", "λ = 5"], "the weakest filter first"
    assert [panel.ece for panel in found.panels] == pytest.approx([0.025, 0.005])
    assert strips.strip_data(strip_arrays(), made[:1]).panels == ()


def test_arrays_come_back_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "gradcam.npz"
    write_arrays(file, cams())
    found = read_arrays(file, "gradcam")
    assert found.strings("runs") == ["ce", "fgr"]
    for name, array in cams().arrays.items():
        assert np.array_equal(found.arrays[name], array), name
    first = file.read_bytes()
    write_arrays(file, cams())
    assert file.read_bytes() == first, "the same arrays are the same file"
    with pytest.raises(ValueError, match="numbers"):
        write_arrays(file, Arrays("gradcam", {"a": np.array([None])}, {}))


def forged(tmp_path: Path, members: dict[str, bytes]) -> Path:
    path = tmp_path / "noise.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    """The file of an array whose header claims what it does not hold."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + b"12345678"


LABELS = npy(np.frombuffer(b'{"schema": 1, "kind": "noise"}', dtype=np.uint8))
FORGED: dict[str, Callable[[], dict[str, bytes]]] = {
    "objects": lambda: {"labels.npy": LABELS, "cosine.npy": npy(np.array([{}], dtype=object), allow_pickle=True)},
    "a huge shape": lambda: {"labels.npy": LABELS, "cosine.npy": header((10**6, 10**6))},
    "a negative shape": lambda: {"labels.npy": LABELS, "cosine.npy": header((-1,))},
    "text": lambda: {"labels.npy": LABELS, "cosine.npy": npy(np.array(["a"]))},
    "no labels": lambda: {"cosine.npy": npy(np.zeros(2))},
    "labels of another kind": lambda: {"labels.npy": npy(np.frombuffer(b'{"schema": 1, "kind": "x"}', np.uint8))},
    "labels that are no JSON": lambda: {"labels.npy": npy(np.frombuffer(b"{", np.uint8))},
    "a deep label": lambda: {"labels.npy": npy(np.frombuffer(b"[" * 100_000, np.uint8))},
    "a bomb": lambda: {"labels.npy": LABELS, "cosine.npy": bytes(300 * 2**20)},
    "no array at all": lambda: {"labels.npy": b"hello"},
}


@pytest.mark.parametrize("kind", FORGED)
def test_forged_arrays_are_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    path = forged(tmp_path, FORGED[kind]())
    with pytest.raises(ValueError, match="what `shiftcal analyse noise` wrote") as caught:
        read_arrays(path, "noise")
    assert "\n" not in str(caught.value)
    result = CliRunner().invoke(app, ["figures", "noise", str(tmp_path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(ValueError, match=r"noise\.npz"):
        read_arrays(tmp_path / "noise.npz", "noise")


# Drawing.


def drawings() -> dict[str, Callable[[list[RunRecord]], Any]]:
    grid = [swept("fgr", 0, r + q / 100, r, q) for r in (0.03, 0.1) for q in (15, 25)]
    over = [swept("fgr", seed, r, r) for r in (0.01, 0.03, 0.1) for seed in (0, 1)]
    constrained = [record("fgr", 0, 0.1).model_copy(update={"history": epochs([0.1, 0.2, 0.3])})]
    histogram = {"right": [1, 0, 3, 4], "wrong": [3, 0, 1, 0]}
    counted = [record("ce", 0, 0.1, clean=metrics(0.1) | {"histogram": histogram}, shifts=[])]
    binned = [record("ce", 0, 0.1, clean=with_bins(0.1, 0.2), shifts=[])]
    return {
        "tradeoff": lambda r: tradeoff.draw_tradeoff(tradeoff.tradeoff_data(r)),
        "boxes": lambda r: boxes.draw_boxes(boxes.box_data(r)),
        "reliability": lambda r: reliability.draw_reliability(reliability.reliability_data(r)),
        "severity": lambda r: severity.draw_severity(severity.severity_data(r)),
        "temperature": lambda _: temperature.draw_temperature(temperature.temperature_data(binned)),
        "conflicts": lambda _: conflicts.draw_conflicts(conflicts.conflict_data(constrained)),
        "training": lambda r: training.draw_training(training.training_data(r)),
        "sensitivity": lambda _: sensitivity.draw_sensitivity(
            sensitivity.sensitivity_data(over, "filter.ratio"), "filter.ratio"
        ),
        "heat": lambda _: heat.draw_heat(heat.heat_data(grid)),
        "coverage": lambda _: coverage.draw_coverage(coverage.coverage_data(counted)),
        "strips": lambda _: strips.draw_strips(strips.strip_data(strip_arrays(), grid[:2])),
        "gradcam": lambda _: gradcam.draw_cams(gradcam.cam_data(cams())),
        "wasserstein": lambda _: wasserstein.draw_distances(wasserstein.distance_data(features())),
        "noise": lambda _: noise.draw_noise(noise.noise_data(noises())),
    }


def test_every_study_has_a_drawing() -> None:
    assert drawings().keys() == STUDIES.keys()


@pytest.mark.parametrize("name", drawings())
def test_something_is_drawn_inside_the_canvas(name: str, records: list[RunRecord]) -> None:
    with Image.open(io.BytesIO(bytes_of(drawings()[name](records)))) as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.std() > 5
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (edge == 255).all(), "nothing is cut off at the edge"


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_figures_are_the_same_file_every_time(kind: str, start: bytes, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.{kind}" for number in range(2)]
    for file in files:
        save(drawings()["heat"]([]), file)
    assert files[0].read_bytes().startswith(start)
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(ValueError, match="format"):
        save(drawings()["heat"]([]), tmp_path / "heat.bmp")


def test_labels_from_elsewhere_are_no_formulas(records: list[RunRecord]) -> None:
    strange = [r.model_copy(update={"method": f"$x_{r.method}$"}) for r in records]
    for draw in (drawings()[name] for name in ("tradeoff", "boxes", "reliability", "severity", "training")):
        assert bytes_of(draw(strange))


def test_lines_that_are_no_methods_have_colours_of_their_own() -> None:
    found = colours_of(["ce", "mine", "theirs", "fgr"])
    assert len(set(found.values())) == 4
    assert colours_of(["fgr"])["fgr"] == found["fgr"]


# The command.


def invoke(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["figures", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def written(place: Path, records: list[RunRecord]) -> Path:
    for r in records:
        run = place / f"{r.method}-{r.seed}"
        run.mkdir(parents=True)
        write_record(run / "record.json", r)
    return place


def test_studies_are_listed_with_what_makes_them() -> None:
    code, shown, _ = invoke()
    assert code == 0
    assert shown == invoke("--list")[1]
    for study in STUDIES.values():
        assert study.name in shown
        assert study.command in shown


def test_a_study_is_drawn_in_every_format(records: list[RunRecord], tmp_path: Path) -> None:
    place = written(tmp_path / "grid", records)
    code, shown, error = invoke("boxes", place, "--out", tmp_path / "out", "--format", "png,svg,pdf")
    assert code == 0, error
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"boxes.png", "boxes.svg", "boxes.pdf"}
    assert f"boxes: {tmp_path / 'out' / 'boxes.png'}" in shown


def test_a_study_of_chosen_methods(records: list[RunRecord], tmp_path: Path) -> None:
    place = written(tmp_path / "grid", records)
    assert {point.method for point in tradeoff.tradeoff_data(Material((place,)).records())} > {"ce"}
    assert {point.method for point in tradeoff.tradeoff_data(Material((place,), methods=("ce",)).records())} == {"ce"}
    code, _, error = invoke("tradeoff", place, "--out", tmp_path / "out", "--methods", "ce,fgrr")
    assert (code, "Did you mean 'fgr'" in error) == (2, True)


def test_arrays_and_records_may_be_in_several_places(tmp_path: Path) -> None:
    made = [swept("fgr", 0, 0.1, 0.1, quality) for quality in (15, 25)]
    runs = [written(tmp_path / str(k), [r]) for k, r in enumerate(made)]
    (tmp_path / "studies").mkdir()
    write_arrays(tmp_path / "studies" / "strips.npz", strip_arrays())
    data = make_study("strips", Material((*runs, tmp_path / "studies")))
    (file,) = write_study(data, tmp_path / "out", ["png"])
    alone = make_study("strips", Material((tmp_path / "studies" / "strips.npz",)))
    (other,) = write_study(alone, tmp_path / "alone", ["png"])
    with Image.open(file) as whole, Image.open(other) as images:
        assert whole.size[1] > images.size[1], "the reliability diagrams are below"


def test_what_is_missing_is_named(records: list[RunRecord], tmp_path: Path) -> None:
    place = written(tmp_path / "grid", records)
    for study, words in {
        "boxs": ["Did you mean 'boxes'"],
        "gradcam": ["gradcam.npz", "shiftcal analyse gradcam"],
        "sensitivity": ["one numeric key", "shiftcal bench demo --methods fgr --sweep gamma.fgr"],
        "heat": ["filter.ratio", "shiftcal bench"],
        "coverage": ["histograms"],
    }.items():
        code, _, error = invoke(study, place, "--out", tmp_path / "out")
        assert code == 2
        assert error.count("\n") == 1
        assert all(word in error for word in words), error
    for words in (["boxes"], ["boxes", place], ["boxes", place, "--out", tmp_path, "--format", "bmp"]):
        assert invoke(*words)[0] == 2
    assert invoke("boxes", tmp_path / "nowhere", "--out", tmp_path / "out")[0] == 2
    (tmp_path / "empty").mkdir()
    assert "finished runs" in invoke("boxes", tmp_path / "empty", "--out", tmp_path / "out")[2]
