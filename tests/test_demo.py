"""The demo's promises, on the real recipe. Slow."""

import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

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


def test_the_page_shows_its_pictures_in_a_browser(runs: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium here; `.ci/run` installs it")
    records = [record(runs, method, f"method={method}") for method in ("ce", "fgr")]
    page, shot = write_report(tmp_path, records, "shiftcal demo"), tmp_path / "shot.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1100,2600"]
    subprocess.run(
        [chromium, *flags, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True, timeout=120
    )
    with Image.open(shot) as image:
        colours = {colour: n for n, colour in image.convert("RGB").getcolors(1 << 24)}
    assert colours.get((0x48, 0x78, 0xA8), 0) > 2000, "the blue bars of the reliability diagrams are on the screen"
    assert colours.get((0x2E, 0x7D, 0x6B), 0) > 100, "and the lines by severity"
