import dataclasses
import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_audits import cell, made
from typer.testing import CliRunner

from shiftcal import metrics
from shiftcal.auditing import audit as audit_module
from shiftcal.auditing.audit import Images, PredictionSets, audit, audit_predictions
from shiftcal.auditing.behind import Behind
from shiftcal.auditing.journal import Journal
from shiftcal.auditing.measure import audit_cell, fit_all
from shiftcal.auditing.predictors import Predictor, tensor_of
from shiftcal.auditing.verdict import GRID_ENDS, best_calibrator, is_shown, verdict, warnings_of
from shiftcal.calibrators import TemperatureScaling, VectorScaling
from shiftcal.calibrators.temperature import GRID
from shiftcal.cli import app
from shiftcal.conformal import ConformalSets, coverage_and_size
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import MemorySplit
from shiftcal.evaluation import Predictions
from shiftcal.models import build
from shiftcal.records.audit import AuditCell, AuditRecord, read_audit
from shiftcal.report.audit import rows_of


def drawn(n: int, seed: int, sharpness: float = 1.6, noise: float = 0.0, classes: int = 5) -> Predictions:
    """Predictions that are too sure by a factor on their logits, and know less the more noise there is."""
    generator = torch.Generator().manual_seed(seed)
    honest = 1.5 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(honest.softmax(-1), 1, generator=generator).squeeze(1)
    seen = honest + noise * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return Predictions(sharpness * seen, targets)


@pytest.fixture(scope="module")
def sets() -> PredictionSets:
    shifts = {("fog", k): drawn(1500, k, 1.2, 0.4 * k) for k in range(1, 4)}
    shifts[("new camera", None)] = drawn(400, 9, 1.2, 1.5)
    return PredictionSets(drawn(1500, 10, 1.2), drawn(1200, 11, 1.2), shifts)


@pytest.fixture(scope="module")
def record(sets: PredictionSets) -> AuditRecord:
    return audit_predictions(sets)


def test_every_number_is_the_librarys(sets: PredictionSets, record: AuditRecord) -> None:
    p, y = sets.clean.logits.softmax(-1), sets.clean.targets
    cell = record.clean
    assert cell.n == 1500
    for name in ("accuracy", "nll", "brier", "ece", "mce", "classwise_ece", "adaptive_ece", "smooth_ece", "aurc"):
        assert getattr(cell, name) == pytest.approx(getattr(metrics, name)(p, y), abs=1e-9), name
    assert cell.excess_aurc == pytest.approx(metrics.excess_aurc(p, y), abs=1e-9)
    assert cell.gap == pytest.approx(metrics.confidence_gap(p, y), abs=1e-9)
    assert cell.noise_floor == pytest.approx(metrics.ece_noise_floor(p), abs=1e-9)
    assert cell.accuracy_at == pytest.approx(
        {c: metrics.accuracy_at_coverage(p, y, coverage=int(c) / 100) for c in ("80", "90")}
    )
    assert cell.brier_calibration == pytest.approx(metrics.brier_calibration(p, y), abs=1e-9)
    assert cell.brier_calibration + cell.brier_refinement == pytest.approx(cell.brier, abs=1e-9)
    assert cell.ece_low < cell.ece < cell.ece_high
    assert sum(cell.histogram.right) == round(cell.accuracy * 1500)


def test_calibrators_and_sets_are_fitted_on_validation_data(sets: PredictionSets, record: AuditRecord) -> None:
    validation, fog = sets.validation, sets.shifts["fog", 3]
    scaling = TemperatureScaling().fit(validation.logits, validation.targets)
    assert record.calibrators["temperature"].temperature == pytest.approx(scaling.temperature)
    [cell] = [c for c in record.shifts if c.shift == "fog" and c.severity == 3]
    expected = metrics.ece(scaling(fog.logits).softmax(-1), fog.targets)
    assert cell.scaled["temperature"].ece == pytest.approx(expected, abs=1e-9)
    vector = VectorScaling().fit(validation.logits, validation.targets)
    assert cell.scaled["vector"].nll == pytest.approx(metrics.nll(vector(fog.logits).softmax(-1), fog.targets))
    aps = ConformalSets.fit(validation.logits.softmax(-1), validation.targets)
    coverage, size = coverage_and_size(aps(fog.logits.softmax(-1)), fog.targets)
    assert (cell.sets["aps"].coverage, cell.sets["aps"].size) == pytest.approx((coverage, size))
    assert set(record.calibrators) == {"temperature", "temperature (augmented)", "vector", "histogram", "isotonic"}
    assert "augmented validation images are needed" in record.calibrators["temperature (augmented)"].reason


def test_the_mean_is_over_shifted_sets_and_its_interval_is_narrower(record: AuditRecord) -> None:
    eces = [cell.ece for cell in record.shifts]
    assert record.shifted.ece == pytest.approx(np.mean(eces))
    assert record.shifted.accuracy == pytest.approx(np.mean([cell.accuracy for cell in record.shifts]))
    assert record.calibrators["vector"].shifted.ece == pytest.approx(
        np.mean([c.scaled["vector"].ece for c in record.shifts])
    )
    widths = [cell.ece_high - cell.ece_low for cell in record.shifts]
    assert record.shifted.ece_low < record.shifted.ece < record.shifted.ece_high
    assert record.shifted.ece_high - record.shifted.ece_low < max(widths)


def test_test_sets_of_the_same_images_are_resampled_together() -> None:
    """Twenty test sets that say nearly the same are one: the mean is as uncertain as each of them."""
    clean = drawn(1000, 3)
    generator = torch.Generator().manual_seed(0)
    noisy = [clean.logits + 0.01 * torch.randn(1000, 5, generator=generator) for _ in range(20)]
    same = {("fog", None): noisy[0]} | {(f"shift {k}", None): z for k, z in enumerate(noisy[1:])}
    together = audit_predictions(
        PredictionSets(clean, shifts={k: Predictions(z, clean.targets) for k, z in same.items()})
    )
    width = together.clean.ece_high - together.clean.ece_low
    assert together.shifted.ece_high - together.shifted.ece_low == pytest.approx(width, rel=0.1)
    apart = {(f"shift {k}", None): drawn(1000, 100 + k) for k in range(20)}
    independent = audit_predictions(PredictionSets(clean, shifts=apart)).shifted
    assert independent.ece_high - independent.ece_low < width / 3


def test_without_validation_data_nothing_is_fitted(sets: PredictionSets) -> None:
    record = audit_predictions(PredictionSets(sets.clean))
    assert record.validation is None
    assert all(tried.reason == "no validation data were given" for tried in record.calibrators.values())
    assert record.sets == dict.fromkeys(("aps", "raps"), "no validation data were given")
    assert record.clean.scaled == {}
    assert "Calibrators were not fitted: no validation data were given." in record.verdict


def test_the_verdict_tells_what_was_found(record: AuditRecord) -> None:
    text = " ".join(record.verdict)
    assert f"Right {100 * record.clean.accuracy:.1f} % of the time, says {100 * record.clean.confidence:.1f} %" in text
    assert "overconfident by" in text
    assert "Under fog and new camera it says" in text
    assert "A temperature fitted on clean data leaves" in text
    assert "Do not use its confidence under" in text
    assert "fog beyond severity 1" in text
    assert any("fewer than 1000 images" in warning for warning in record.warnings)


def test_corruptions_of_a_family_are_judged_together() -> None:
    def judged(**eces: float) -> str:
        shifts = [cell(ece, 0.5, shift=name, severity=k) for name, ece in eces.items() for k in (1, 2)]
        shifts = [one | {"ece": one["ece"] * one["severity"]} for one in shifts]
        return " ".join(verdict(made(shifts=shifts)))

    assert "Do not use its confidence under weather beyond severity 1." in judged(fog=0.08, snow=0.06)
    assert "Do not use its confidence under fog beyond severity 1; under impulse noise." in judged(
        fog=0.08, impulse_noise=0.2
    )
    assert "Do not use" not in judged(fog=0.02, snow=0.03)


def test_what_chance_gives_is_not_held_against_a_shift() -> None:
    """At forty images an ECE of 17 % is the noise floor."""
    few = [cell(0.17, 0.5, shift="camera", noise_floor=0.18)]
    text = " ".join(verdict(made(shifts=few, shifted=cell(0.17, 0.5, noise_floor=0.18))))
    assert "no more off than chance" in text
    assert "Do not use" not in text
    assert "not even on images like these" in " ".join(verdict(made(clean=cell(0.31, 0.5))))


def test_the_gap_decides_where_the_floor_says_little() -> None:
    """One bin, n = 600: the floor is 0.8 standard errors, and 1.5 of them come by chance in a quarter of the draws."""
    error = math.sqrt(0.9 * 0.1 / 600)
    constant = {"confidence": 0.9, "n": 600, "noise_floor": 0.8 * error, "ece_low": 0.0}

    def shown(errors: float, ece: float | None = None, **more: float) -> bool:
        gap = errors * error
        one = cell(ece or gap, 0.9 - gap, gap=gap, **(constant | more))
        return is_shown(AuditCell.model_validate(one))

    assert not shown(1.5)
    assert shown(2.5)
    assert shown(1.0, ece=4 * error), "not in one direction"
    assert shown(3.1, ece=3.5 * error, noise_floor=3 * error), "below 1.5 floors"
    assert not shown(2.9, ece=3.5 * error, noise_floor=3 * error)


def test_calibrated_models_of_one_confidence_are_blamed_in_one_of_twenty() -> None:
    generator, blamed = np.random.default_rng(0), 0
    p = torch.tensor([[0.9, 0.06, 0.04]], dtype=torch.float64).expand(400, 3)
    for _ in range(200):
        targets = torch.from_numpy(generator.choice(3, 400, p=[0.9, 0.06, 0.04]))
        found, _ = audit_cell(Predictions(p.log(), targets), fit_all({}))
        blamed += is_shown(found)
    assert blamed <= 20


def test_a_perfect_model_is_not_criticised() -> None:
    perfect = cell(0.0, 1.0, noise_floor=0.0, gap=0.0, ece_low=0.0)
    assert "Nothing was shown against its confidence" in verdict(made(clean=perfect, shifts=[], shifted=None))[0]


def test_a_small_error_in_one_direction_is_named() -> None:
    less = cell(0.008, 0.98, noise_floor=0.001, gap=-0.008, ece_low=0.004)
    assert "underconfident by 0.8 points" in verdict(made(clean=less, shifts=[], shifted=None))[0]
    both = cell(0.03, 0.9, noise_floor=0.001, gap=0.002)
    assert "sure enough on average, but not image by image" in verdict(made(clean=both, shifts=[], shifted=None))[0]


def test_a_temperature_at_the_end_of_its_grid_is_told() -> None:
    def warned(temperature: float) -> str:
        tried = {"temperature": {"fitted_on": "validation images", "temperature": temperature}}
        return " ".join(warnings_of(made(calibrators=tried)))

    assert "at an end of the grid from 0.10 to 5.00" in warned(5.0)
    assert "at an end of the grid" in warned(0.1)
    assert "at an end of the grid" not in warned(4.99)
    assert tuple(GRID[[0, -1]].tolist()) == GRID_ENDS


def test_opposite_errors_do_not_cancel_out() -> None:
    fog, snow = cell(0.3, 0.5, shift="fog", severity=1), cell(0.2, 0.5, shift="snow", severity=1, gap=-0.2)
    text = " ".join(verdict(made(shifts=[fog, snow], shifted=cell(0.25, 0.5, gap=0.05))))
    assert "overconfident by 5.0 points, overconfident in 1 and underconfident in 1 of 2 test sets" in text


def test_a_calibrated_model_is_not_blamed() -> None:
    record = audit_predictions(PredictionSets(drawn(2000, 0, 1.0), drawn(2000, 1, 1.0)))
    [first, *rest] = record.verdict
    assert "Nothing was shown against its confidence here." in first
    assert rest == []
    few = audit_predictions(PredictionSets(drawn(200, 0, 1.0)))
    assert any("only 200 clean test images" in warning for warning in few.warnings)


def test_what_mends_is_what_lowers_the_error_most(record: AuditRecord) -> None:
    after = {name: tried.shifted.ece for name, tried in record.calibrators.items() if tried.shifted}
    assert record.mended_by == min(after, key=after.get)
    assert after[record.mended_by] < record.shifted.ece
    worse = {
        name: tried.model_copy(update={"shifted": tried.shifted and tried.shifted.model_copy(update={"ece": 0.9})})
        for name, tried in record.calibrators.items()
    }
    none = record.model_copy(update={"calibrators": worse})
    assert best_calibrator(none) is None
    assert "No calibrator lowers its error under shift." in verdict(none)


def test_a_class_that_is_never_predicted_gives_no_nan() -> None:
    one = drawn(300, 0)
    one.logits[:, 3] = -50
    cell, _ = audit_cell(one, fit_all({"clean": drawn(300, 1)}))
    assert all(np.isfinite(value) for value in (cell.ece, cell.classwise_ece, cell.nll, cell.brier_calibration))


def test_an_interrupted_audit_continues(sets: PredictionSets, record: AuditRecord, tmp_path: Path) -> None:
    path, about = tmp_path / "cells.jsonl", {"model": "a"}

    class Stopping(Journal):
        def add(self, cell, replicates) -> None:  # type: ignore[no-untyped-def]
            super().add(cell, replicates)
            if len(self) == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit_predictions(sets, journal=Stopping(path, about))
    with path.open("a") as file:
        file.write('{"cell": {"accuracy": 0.')  # cut off in the middle
    journal = Journal(path, about)
    assert len(journal) == 3
    again = audit_predictions(sets, journal=journal)
    assert again.model_dump(exclude={"seconds", "shifted"}) == record.model_dump(exclude={"seconds", "shifted"})
    ends = ("ece", "ece_low", "ece_high")  # errors of resamples are rounded in the file
    assert [getattr(again.shifted, e) for e in ends] == pytest.approx([getattr(record.shifted, e) for e in ends])
    with pytest.raises(ValueError, match=r"that of the same audit. .*5 test sets of another one"):
        Journal(path, {"model": "b"})
    assert len(Journal(path, about)) == 5, "nothing was lost by it"


def images(n: int, seed: int) -> MemorySplit:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (n, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return MemorySplit(pixels, torch.randint(0, 4, (n,), generator=generator))


def noise_audited() -> AuditRecord:
    torch.manual_seed(0)
    model = build("small", 4)
    given = Images("noise", ("a", "b", "c", "d"), images(60, 0), images(50, 1), {"other": (images(40, 2),)})
    preprocess = Preprocessing((0.5,) * 3, (0.5,) * 3)
    return audit(model, given, preprocess=preprocess, corruptions=("fog", "pixelate"), progress=False)


class Sure(torch.nn.Module):
    """A model that returns probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build("small", 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).softmax(-1)


def test_a_model_whose_outputs_are_not_logits_of_the_classes_is_refused() -> None:
    torch.manual_seed(0)
    split, given = images(60, 0), {"preprocess": Preprocessing((0.5,) * 3, (0.5,) * 3), "progress": False}
    with pytest.raises(ValueError, match=r"`model` should be one with an output for each of the 3 classes\. Found .*4"):
        audit(build("small", 4), Images("noise", ("a", "b", "c"), split), corruptions=(), **given)
    four = Images("noise", ("a", "b", "c", "d"), split)
    with pytest.raises(ValueError, match=r'these are probabilities, it seems.* Predictor\(model, "probabilities"\)'):
        audit(Sure().eval(), four, corruptions=(), **given)
    model = Sure().eval()
    wrapped = audit(Predictor(model, "probabilities"), four, corruptions=(), **given)
    plain = audit(model.model, four, corruptions=(), **given)
    assert wrapped.clean.ece == pytest.approx(plain.clean.ece, abs=1e-6)


def test_sets_are_measured_behind_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = noise_audited()
    threads: set[str] = set()

    def seen(*arguments, **options):
        threads.add(threading.current_thread().name)
        return audit_cell(*arguments, **options)

    monkeypatch.setattr(audit_module, "audit_cell", seen)
    monkeypatch.setattr(audit_module, "_measured_behind", lambda *_: True)
    behind = noise_audited()
    assert len(threads) == 2, "the validation set is measured at the end, at once"
    assert behind.model_dump(exclude={"seconds"}) == at_once.model_dump(exclude={"seconds"})
    assert behind.clean.by_class
    assert not any(cell.by_class for cell in (*behind.shifts, behind.validation)), "classes of the clean set alone"


@pytest.mark.parametrize("behind", [False, True])
def test_predictions_leave_the_device_where_they_are_measured_behind(
    behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []
    monkeypatch.setattr(Predictions, "cpu", lambda self: moved.append(len(self.targets)) or self)
    monkeypatch.setattr(audit_module, "_measured_behind", lambda *_: behind)
    noise_audited()
    assert moved == ([50] * 5 + [60, 40] + [60] * 10) * behind


def test_sets_are_measured_behind_a_device_where_they_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Images("noise", ("a", "b", "c", "d"), images(60, 0), images(50, 1), {"other": (images(70, 2),)})
    elsewhere, here = build("small", 4).to("meta"), build("small", 4)
    assert audit_module._measured_behind(elsewhere, given)
    assert not audit_module._measured_behind(here, given), "the CPU has enough to do"
    monkeypatch.setattr(audit_module, "_FEW", 280)
    assert audit_module._measured_behind(elsewhere, given)
    monkeypatch.setattr(audit_module, "_FEW", 279)
    assert not audit_module._measured_behind(elsewhere, given), "70 predictions of 4 classes"
    assert audit_module._measured_behind(elsewhere, Images("noise", given.classes, given.test))
    monkeypatch.setattr(audit_module._distributed, "is_distributed", lambda: True)
    assert not audit_module._measured_behind(elsewhere, Images("noise", given.classes, given.test))


def test_calls_behind_come_in_order_and_raise() -> None:
    made: list[int] = []
    with Behind() as calls:
        for k in range(20):
            calls.call(made.append, k)
    assert made == list(range(20))

    def fail(k: int) -> None:
        raise ValueError(k)

    def fail_then_go_on() -> None:
        with Behind() as calls:
            calls.call(fail, 1)
            calls.call(made.append, 99)

    def slow() -> None:
        time.sleep(0.2)
        made.append(50)

    def fail_between(*call: Any) -> None:
        with Behind() as calls:
            calls.call(*call)
            raise KeyError

    with pytest.raises(ValueError, match="1"):
        fail_then_go_on()
    assert 99 not in made
    with pytest.raises(KeyError):
        fail_between(fail, 2)
    with pytest.raises(KeyError):
        fail_between(slow)
    assert made[-1] == 50, "a call that has begun is waited for"
    with pytest.raises(ValueError, match="3"), Behind() as calls:
        calls.call(fail, 3)
    with Behind(enabled=False) as calls:
        calls.call(lambda: made.append(threading.get_ident()))
    assert made[-1] == threading.get_ident()


def test_a_model_is_audited_under_corruption() -> None:
    found = noise_audited()
    assert [(c.shift, c.severity) for c in found.shifts][:2] == [("other", None), ("fog", 1)]
    assert len(found.shifts) == 11
    assert found.calibrators["temperature (augmented)"].fitted_on is not None
    assert found.data.counts == {"test": 60, "validation": 50, "other": 40}
    assert found.corruptions.constants == "cifar"


def test_severities_are_those_of_the_nearest_image_size() -> None:
    split = MemorySplit(torch.zeros(4, 3, 64, 64, dtype=torch.uint8), torch.arange(4) % 2)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 2))
    options = {"preprocess": Preprocessing((0.5,) * 3, (0.5,) * 3), "corruptions": ("contrast",), "progress": False}
    for given, expected in ((None, "tiny-imagenet"), ("cifar", "cifar")):
        record = audit(model, Images("x", ("a", "b"), split), constants=given, **options)
        assert record.corruptions.constants == expected


@pytest.mark.parametrize("wrap", [lambda z: {"logits": z}, lambda z: (z, None), lambda z: [z], lambda z: z])
def test_logits_are_found_in_what_a_model_returns(wrap) -> None:  # type: ignore[no-untyped-def]
    z = torch.randn(3, 4)
    assert torch.equal(tensor_of(wrap(z)), z)
    with pytest.raises(ValueError, match="a row of logits for each image"):
        tensor_of(torch.zeros(3))
    with pytest.raises(ValueError, match="one that returns logits"):
        tensor_of({"scores": z})


def test_probabilities_become_logits_and_columns_are_chosen() -> None:
    class Gives(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :4].softmax(-1)

    x = torch.randn(5, 3, 2, 2)
    p = x.flatten(1)[:, :4].softmax(-1)
    torch.testing.assert_close(Predictor(Gives(), "probabilities")(x).softmax(-1).float(), p)
    chosen = Predictor(Gives(), "probabilities", [2, 0])(x).softmax(-1).float()
    torch.testing.assert_close(chosen, p[:, [2, 0]] / p[:, [2, 0]].sum(1, keepdim=True))

    class Logits(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 5 * x.flatten(1)[:, :4]

    with pytest.raises(ValueError, match="`outputs` should be probabilities"):
        Predictor(Logits(), "probabilities")(x)


def write_npz(path: Path, sets: PredictionSets) -> None:
    parts = [("test", "", 0, sets.clean), ("validation", "", 0, sets.validation)]
    parts += [("test", shift, severity or 0, p) for (shift, severity), p in sets.shifts.items()]
    np.savez(
        path,
        logits=np.concatenate([p.logits.numpy() for *_, p in parts]),
        target=np.concatenate([p.targets.numpy() for *_, p in parts]),
        split=np.concatenate([[split] * len(p.targets) for split, _, _, p in parts]),
        shift=np.concatenate([[shift] * len(p.targets) for _, shift, _, p in parts]),
        severity=np.concatenate([[severity] * len(p.targets) for _, _, severity, p in parts]),
    )


def test_the_command_on_predictions(sets: PredictionSets, record: AuditRecord, tmp_path: Path) -> None:
    write_npz(tmp_path / "p.npz", sets)
    words = ["audit", "--predictions", str(tmp_path / "p.npz"), "--out", str(tmp_path / "a")]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.output
    assert record.verdict[0] in first.output.replace("\\", "")
    found = read_audit(tmp_path / "a")
    assert found.clean == record.clean
    assert found.shifted.ece == pytest.approx(record.shifted.ece, abs=1e-9)
    page = (tmp_path / "a" / "audit.html").read_text()
    assert "Right" in page
    assert 'id="reliability"' in page
    assert 'src="http' not in page
    assert not (tmp_path / "a" / "cells.jsonl").exists()
    second = CliRunner().invoke(app, words)
    assert "finished earlier" in second.output
    np.savez(tmp_path / "q.npz", logits=sets.clean.logits.numpy(), target=sets.clean.targets.numpy())
    other = CliRunner().invoke(app, ["audit", "--predictions", str(tmp_path / "q.npz"), "--out", str(tmp_path / "a")])
    assert other.exit_code == 2
    assert "another audit.json" in other.output
    json.loads((tmp_path / "a" / "audit.json").read_text())


def test_tables_of_one_name_are_told_apart(sets: PredictionSets, tmp_path: Path) -> None:
    """A change in either of two files of the same name is another audit."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_npz(tmp_path / folder / "p.npz", sets)
    words = ["audit", "--predictions", f"{tmp_path / 'a' / 'p.npz'},{tmp_path / 'b' / 'p.npz'}", "--out"]
    first = CliRunner().invoke(app, [*words, str(tmp_path / "out")])
    assert first.exit_code == 0, first.output
    assert "was finished earlier" in CliRunner().invoke(app, [*words, str(tmp_path / "out")]).output
    changed = dataclasses.replace(sets, clean=Predictions(-sets.clean.logits, sets.clean.targets))
    write_npz(tmp_path / "a" / "p.npz", changed)
    again = CliRunner().invoke(app, [*words, str(tmp_path / "out")])
    assert again.exit_code == 2
    assert "which has another audit.json" in again.output


def test_options_of_a_model_are_refused_with_tables(sets: PredictionSets, tmp_path: Path) -> None:
    write_npz(tmp_path / "p.npz", sets)
    words = ["audit", "--predictions", str(tmp_path / "p.npz"), "--out", str(tmp_path / "out")]
    answer = CliRunner().invoke(app, [*words, "--outputs", "probabilities", "--corruptions", "fog"])
    assert answer.exit_code == 2
    assert "--corruptions, --outputs" in answer.output
    assert not (tmp_path / "out").exists()


def test_the_command_wants_one_thing(tmp_path: Path) -> None:
    neither = CliRunner().invoke(app, ["audit", "--out", str(tmp_path / "a")])
    assert neither.exit_code == 2
    assert "`MODEL` should be given, or --predictions" in neither.output
    missing = CliRunner().invoke(app, ["audit", "nowhere", "--out", str(tmp_path / "a")])
    assert missing.exit_code == 2
    assert not (tmp_path / "a").exists()


def test_a_shift_that_is_no_corruption_has_a_sentence_and_a_row() -> None:
    hospital = cell(0.15, 0.8, shift="hospital_C")
    shifts = [*(cell(0.01, 0.9, shift="fog", severity=k, gap=0.01) for k in range(1, 6)), hospital]
    record = made(shifts=shifts, shifted=cell(0.02, 0.88, noise_floor=0.02))
    text = " ".join(verdict(record))
    assert "Under hospital C it says 95.0 % and is right 80.0 %: overconfident by 15.0 points" in text
    assert [name for name, *_ in rows_of(record)][:3] == ["clean", "mean of 6 shifted sets", "hospital C"]
    alone = " ".join(verdict(made(shifts=[hospital], shifted=cell(0.15, 0.8))))
    assert alone.count("Under hospital C") == 1
    assert "Under fog" not in " ".join(verdict(made(shifts=shifts[:5], shifted=cell(0.01)))[2:])


def test_the_best_calibrator_tells_what_it_costs_on_clean_images() -> None:
    def tried(clean: float) -> dict[str, Any]:
        after = {name: cell(ece) for name, ece in (("clean", clean), ("shifted", 0.05))}
        return {"vector": {"fitted_on": "validation images", **after}}

    assert "Best under shift: vector, 5.0 %, at a clean ECE of 9.0 % instead of 5.0 %." in verdict(
        made(calibrators=tried(0.09))
    )
    assert "Best under shift: vector, 5.0 %." in verdict(made(calibrators=tried(0.055)))


def test_a_class_that_is_never_found_is_told() -> None:
    def told(**counts: Any) -> str:
        return " ".join(warnings_of(made(clean=cell(0.05, 0.95, **counts))))

    assert "It never finds dog (0 of 50 images)" in told(class_counts=(950, 50), class_hits=(950, 0))
    assert "never finds" not in told(class_counts=(950, 50), class_hits=(940, 10))
    assert "never finds" not in told(class_counts=(1000, 0), class_hits=(950, 0)), "there was nothing to find"
    assert "never finds" not in told(class_counts=(999, 1), class_hits=(950, 0)), "one image may be missed by chance"


def test_counts_of_classes_are_those_of_the_clean_set() -> None:
    targets = torch.tensor([0, 0, 0, 1, 2])
    logits = torch.eye(3)[torch.tensor([0, 0, 1, 1, 0])] * 5
    clean = audit_predictions(PredictionSets(Predictions(logits, targets))).clean
    assert (clean.class_counts, clean.class_hits) == ((3, 1, 1), (2, 1, 0))


@pytest.mark.parametrize(("accuracy", "n", "told"), [(0.04, 200, True), (0.45, 50, False), (0.9, 200, False)])
def test_swapped_classes_are_suspected(accuracy: float, n: int, told: bool) -> None:
    counts = {"class_counts": (n // 2, n // 2), "class_hits": (1, 1), "n": n}
    clean = cell(0.02, accuracy, **counts)
    assert ("are its two classes swapped?" in " ".join(warnings_of(made(clean=clean)))) is told


@pytest.mark.parametrize(("validation", "told"), [(1.0, True), (0.92, False), (0.85, False)])
def test_validation_images_that_were_trained_on_are_suspected(validation: float, told: bool) -> None:
    text = " ".join(warnings_of(made(clean=cell(0.05, 0.9), validation=cell(0.01, validation, confidence=1.0))))
    assert ("Was it trained on the former?" in text) is told


@pytest.mark.usefixtures("unchecked")
def test_images_that_are_no_split_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`images` should be of splits, such as shiftcal\.data\.MemorySplit.*a tuple"):
        Images("x", ("a", "b"), (torch.zeros(2, 3, 16, 16), torch.tensor([0, 1])))  # type: ignore[arg-type]
