"""Analyses of finished runs: what is measured, where it goes, and what is refused."""

import base64
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import invoke
from PIL import Image

from shiftcal.analysis.gallery import Shown, samples_of
from shiftcal.analysis.gradcam import grad_cam
from shiftcal.analysis.wasserstein import features_of, gaussian_wasserstein
from shiftcal.data.split import MemorySplit
from shiftcal.experiments.analyse import Asked, analyse
from shiftcal.experiments.config import load_config
from shiftcal.experiments.finished_runs import FinishedRun, open_finished, thinned
from shiftcal.experiments.gallery import LARGEST, fitting, middle_cells
from shiftcal.experiments.run import complete
from shiftcal.filtering import dct_low_pass
from shiftcal.records import find_runs
from shiftcal.records.arrays import read_arrays
from shiftcal.records.gallery import read_gallery
from shiftcal.shifts.lazy import Corrupted

TINY = ["data.train=200", "data.validation=40", "data.test=60", "train.epochs=2", "train.batch_size=40"]
TINY += ["evaluation.corruptions=['contrast']", "train.start=0.5"]


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, of cross-entropy and FGR."""
    place = tmp_path_factory.mktemp("grid")
    for method in ("ce", "fgr"):
        complete(load_config("demo", [*TINY, f"method={method}"]), place / method, progress=False)
    return place


def opened(path: Path) -> FinishedRun:
    return open_finished(path, root=None, device="cpu", trust=False)


def test_gradcam_is_that_of_each_model_on_the_same_images(grid: Path, tmp_path: Path) -> None:
    code, shown, error = invoke("analyse", "gradcam", grid, "--out", tmp_path, "--images", 4, "--shift", "contrast")
    assert code == 0, error
    assert f"gradcam: {tmp_path / 'gradcam.npz'}" in shown
    found = read_arrays(tmp_path / "gradcam.npz", "gradcam")
    assert found.strings("runs") == ["ce", "fgr"]
    assert found.labels["shift"] == "contrast 3"
    run = opened(grid / "fgr")
    chosen = torch.linspace(0, 59, 4).round().long()
    split = MemorySplit(run.dataset.test.images[chosen], run.dataset.test.targets[chosen])  # type: ignore[attr-defined]
    _, part = next(iter(Corrupted(split, "contrast", 3, "cifar").parts(4)))
    assert np.array_equal(found.arrays["images"], part.images.permute(0, 2, 3, 1).numpy())
    maps = grad_cam(run.model, run.preprocess(part.images)).numpy()
    np.testing.assert_allclose(found.arrays["maps"][1], maps, atol=2e-3)
    assert found.arrays["targets"].tolist() == split.targets.tolist()


def test_features_are_compared_before_and_after_filter_and_shift(grid: Path, tmp_path: Path) -> None:
    asked = Asked(qualities=(25, 5), ratios=(0.5,), samples=100)
    (file,) = analyse("features", [grid / "ce"], tmp_path, asked, progress=False)
    found = read_arrays(file, "features")
    assert found.strings("shifts") == ["texture 3", "contrast 3"]
    assert found.array("by_quality", 1, 2).min() > 0
    run = opened(grid / "ce")
    clean = features_of(run.model, run.dataset.test, run.preprocess)
    shifted = features_of(run.model, Corrupted(run.dataset.test, "contrast", 3, "cifar"), run.preprocess)
    assert found.array("by_shift", 1, 2)[0, 1] == pytest.approx(gaussian_wasserstein(clean, shifted), rel=1e-5)


def test_noise_is_measured_for_methods_with_and_without_a_constraint(grid: Path, tmp_path: Path) -> None:
    before = (grid / "fgr" / "model.safetensors").read_bytes()
    (file,) = analyse("noise", [grid], tmp_path, Asked(pairs=3), progress=False)
    found = read_arrays(file, "noise")
    assert found.strings("scopes") == ["all", "classifier"]
    assert (np.abs(found.array("cosine", 2, 2)) <= 1).all()
    assert (found.array("norm", 2, 2)[:, 0] > found.array("norm", 2, 2)[:, 1]).all(), (
        "all parameters have the larger one"
    )
    assert set(np.unique(np.round(3 * found.array("conflict_rate", 2, 2)))) <= {0, 1, 2, 3}
    again = analyse("noise", [grid], tmp_path / "again", Asked(pairs=3), progress=False)[0]
    assert again.read_bytes() == file.read_bytes(), "what is drawn is a function of the run"
    assert (grid / "fgr" / "model.safetensors").read_bytes() == before


def test_strips_are_of_the_test_images(grid: Path, tmp_path: Path) -> None:
    (file,) = analyse("strips", [grid / "ce"], tmp_path, Asked(images=3, qualities=(10,)), progress=False)
    images = torch.from_numpy(read_arrays(file, "strips").array("images", 2, 3, None, None, 3)).permute(0, 1, 4, 2, 3)
    assert torch.equal(images[1], dct_low_pass(images[0].contiguous(), 10))


def test_one_run_keeps_its_arrays_and_can_still_be_resumed(grid: Path, tmp_path: Path) -> None:
    run = shutil.copytree(grid / "ce", tmp_path / "ce")
    assert invoke("analyse", "strips", run, "--images", 2)[0] == 0
    assert invoke("analyse", "gallery", run, "--look", 40)[0] == 0
    assert {"strips.npz", "gallery.json"} <= {path.name for path in run.iterdir()}
    assert find_runs(tmp_path) == [run]
    kept = (run / "record.json").read_bytes()
    complete(load_config("demo", [*TINY, "method=ce"]), run, resume=True, progress=False)
    assert (run / "record.json").read_bytes() == kept


def test_a_gallery_has_the_surest_mistakes_of_each_shift(grid: Path, tmp_path: Path) -> None:
    run = shutil.copytree(grid / "ce", tmp_path / "ce")
    (file,) = analyse("gallery", [run], None, Asked(look=60), progress=False)
    assert file == run / "gallery.json"
    assert file.stat().st_size < 400_000
    found = read_gallery(run)
    assert {(one.shift, one.severity) for one in found} == {(None, None), ("texture", 3), ("contrast", 3)}
    model = opened(run)
    expected = samples_of(model.model, model.dataset.test, model.preprocess)
    clean = [one for one in found if one.shift is None]
    names = model.dataset.classes
    assert [(one.true, one.predicted) for one in clean] == [(names[e.true], names[e.predicted]) for e in expected]
    assert [one.confidence for one in clean] == pytest.approx([e.confidence for e in expected], abs=1e-6)
    with Image.open(io.BytesIO(base64.b64decode(clean[0].png))) as image:
        assert np.array_equal(np.asarray(image), expected[0].thumbnail.permute(1, 2, 0).numpy())
    stored = json.loads(file.read_text())
    assert stored["schema"] == 1


def noisy(shifts: int, size: int) -> list[Shown]:
    generator = torch.Generator().manual_seed(0)
    return [
        Shown(f"shift {s}", 3, 0, int(k < 6), 0.9, torch.randint(0, 256, (3, size, size), generator=generator).byte())
        for s in range(shifts)
        for k in range(8)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("shifts", "size"), [(2, 64), (20, 64), (20, 32), (300, 32)])
def test_galleries_of_any_number_of_shifts_are_small(shifts: int, size: int) -> None:
    found = fitting(noisy(shifts, size), ("cat", "dog"))
    assert sum(len(one.model_dump_json()) for one in found) < 400_000
    if shifts <= 20:
        assert len({one.shift for one in found}) == shifts, "every shift has some"
        assert any(one.right for one in found)
        assert any(not one.right for one in found)
    assert LARGEST < 400_000


def test_shifts_are_shown_at_their_middle_severity() -> None:
    split = MemorySplit(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.long))
    cells = [("fog", severity, split) for severity in (1, 2, 3, 4, 5)] + [("other", None, split)]
    assert [(name, severity) for name, severity, _ in middle_cells(cells)] == [("fog", 3), ("other", None)]


def test_few_images_are_spread_over_a_split() -> None:
    split = MemorySplit(torch.zeros(100, 3, 8, 8, dtype=torch.uint8), torch.arange(100))
    assert thinned(split, 3).targets.tolist() == [0, 50, 99]
    assert thinned(split, 200) is split


def test_what_cannot_be_analysed_is_told_in_one_line(grid: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(grid / "ce", tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"nothing")
    unfinished = shutil.copytree(grid / "ce", tmp_path / "unfinished")
    (unfinished / "record.json").unlink()
    for words, expected in {
        ("gradcm", grid): "Did you mean 'gradcam'",
        ("gradcam", grid): "--out DIR",
        ("gradcam", tmp_path / "nowhere"): "directory",
        ("strips", damaged): "damaged",
        ("strips", unfinished): "finished run",
        ("gradcam", grid / "ce", "--shift", "fog"): "contrast",
        ("gradcam", grid / "ce", "--shift", "contrast", "--severity", "9"): "severity",
        ("gradcam", grid / "ce", "--layer", "feature"): "Did you mean 'features'",
        ("strips", grid / "ce", "--qualities", "0"): "1..100",
        ("strips", grid / "ce", "--qualities", "a"): "numbers",
        ("features", grid / "ce", "--ratios", "2"): "0..1",
        ("noise", grid / "ce", "--pairs", "0"): "positive",
    }.items():
        code, _, error = invoke("analyse", *words)
        assert code == 2, words
        assert expected in error
        assert error.count("\n") == 1
    assert not list(grid.glob("**/*.npz"))
