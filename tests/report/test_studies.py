"""A sweep through real runs, and every study's figures from it."""

from pathlib import Path

import pytest
from commands import done
from PIL import Image

from shiftcal.experiments.config import load_config
from shiftcal.experiments.grid import complete_all
from shiftcal.records import load_records
from shiftcal.report.figures import heat, sensitivity
from shiftcal.report.studies import STUDIES

TINY = ["data.train=200", "data.validation=40", "data.test=60", "train.epochs=2", "train.batch_size=40"]
TINY += ["evaluation.corruptions=['contrast']", "train.start=0.5"]


def runs(place: Path, *changes: list[str]) -> Path:
    """Run each change of the recipe in a directory below a place of its own, as a sweep does."""
    for number, change in enumerate(changes):
        complete_all({f"run-{number}": load_config("demo", [*TINY, *change])}, place / str(number))
    return place


@pytest.mark.slow
def test_every_study_is_drawn_from_real_runs(tmp_path: Path) -> None:
    grid = tmp_path / "grid"
    names = {f"{m}-{s}": [f"method={m}", f"seed={s}"] for m in ("ce", "fgr") for s in (0, 1)}
    complete_all({name: load_config("demo", [*TINY, *change]) for name, change in names.items()}, grid)
    gamma = runs(tmp_path / "gamma", *([f"gamma.fgr={value}"] for value in (0, 1, 3)))
    pairs = [(ratio, quality) for ratio in (0.05, 0.2) for quality in (10, 25)]
    joint = runs(tmp_path / "joint", *([f"filter.ratio={r}", f"filter.qualities=[{q}]"] for r, q in pairs))
    studies, out = tmp_path / "studies", tmp_path / "out"
    for kind in ("gradcam", "features", "noise", "strips"):
        done("analyse", kind, grid / "ce-0", grid / "fgr-0", "--out", studies, "--samples", 100, "--pairs", 2)
    single = [joint / "0", joint / "1"]  # one ratio, two qualities
    places = {name: [grid] for name in STUDIES} | {
        "sensitivity": sorted(gamma.iterdir()),
        "heat": sorted(joint.iterdir()),
        "strips": [studies, *single],
        "gradcam": [studies],
        "wasserstein": [studies],
        "noise": [studies],
    }
    stems = {"sensitivity": "sensitivity-gamma-fgr", "heat": "heat-fgr"}
    for study, own in places.items():
        shown = done("figures", study, *own, "--out", out, "--format", "png,pdf,svg")
        for kind in ("png", "pdf", "svg"):
            assert f"{out / stems.get(study, study)}.{kind}" in shown
        with Image.open(out / f"{stems.get(study, study)}.png") as image:
            assert min(image.size) > 200
    swept = [record for place in places["sensitivity"] for record in load_records(place)]
    points = sensitivity.sensitivity_data(swept, "gamma.fgr")
    assert [point.value for point in points] == [0, 1, 3]
    assert points[2].mean("shifted", "ece") == swept[2].evaluation.shifted.ece
    map_ = heat.heat_data([record for place in places["heat"] for record in load_records(place)])
    assert (map_.rows, map_.columns) == ((0.05, 0.2), (10, 25))
    assert map_.values["clean", "accuracy"][1][0] == load_records(joint / "2")[0].evaluation.clean.accuracy
    assert "| ρ | 0.05 | 0.1 | 0.2 | 0.4 |" in (out / "wasserstein.md").read_text()
