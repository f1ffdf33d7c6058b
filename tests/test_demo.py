"""The demo's promises, on the real recipe. Slow."""

from pathlib import Path

import pytest
from browser import Opened, browser

from shiftcal.experiments.config import load_config
from shiftcal.experiments.run import complete
from shiftcal.records import Bins, RunRecord
from shiftcal.report.page import write_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


def record(runs: Path, name: str, *overrides: str) -> RunRecord:
    return complete(load_config("demo", list(overrides)), runs / name, resume=True, progress=False)


def mean_over(bins: Bins, values: tuple[float, ...]) -> float:
    return sum(n * v for n, v in zip(bins.count, values, strict=True)) / sum(bins.count)


def test_cross_entropy_learns_and_is_overconfident_under_shift(runs: Path) -> None:
    evaluation = record(runs, "ce", "method=ce").evaluation
    assert evaluation.clean.accuracy >= 0.9
    assert evaluation.shifted.ece > 3 * evaluation.clean.ece
    bins = evaluation.reliability.shifted
    assert mean_over(bins, bins.confidence) > mean_over(bins, bins.accuracy) + 0.05


def test_the_silhouette_alone_is_learnable(runs: Path) -> None:
    evaluation = record(runs, "silhouette", "method=ce", "data.texture_amplitude=0").evaluation
    assert evaluation.clean.accuracy >= 0.9


def test_fgr_is_better_calibrated_under_shift_at_the_same_accuracy(runs: Path) -> None:
    ce, fgr = (record(runs, method, f"method={method}").evaluation for method in ("ce", "fgr"))
    assert fgr.shifted.ece < ce.shifted.ece
    assert fgr.clean.accuracy > ce.clean.accuracy - 0.015


def test_the_recommended_method_is_better_still(runs: Path) -> None:
    fgr, views = (record(runs, method, f"method={method}").evaluation for method in ("fgr", "dfl+views"))
    assert views.shifted.ece < fgr.shifted.ece
    assert views.shifted.accuracy > fgr.shifted.accuracy + 0.05
    assert views.clean.accuracy > fgr.clean.accuracy - 0.005


def test_the_page_of_the_demo_in_a_browser(runs: Path, tmp_path: Path) -> None:
    records = [record(runs, method, f"method={method}") for method in ("ce", "fgr")]
    with browser() as chromium:
        found = Opened(chromium, write_report(tmp_path, records, "shiftcal demo"))
        assert found.page.locator("#reliability svg g title").count() > 3
        assert found.page.locator('#severity path[data-method="1"]').count() == 7
        assert found.page.locator("#training figcaption").filter(has_text="conflict rate").count() == 1
        assert "fgr has the lowest calibration error" in found.page.locator(".verdict").inner_text()
        assert found.errors == []
        assert found.elsewhere == []
