import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_audits import cell, made
from scipy import stats
from typer.testing import CliRunner

from shiftcal.auditing.gate import Limits, checks, overall, wilson
from shiftcal.cli import app
from shiftcal.records.audit import AUDIT, AuditRecord, write_audit
from shiftcal.report.gate import summary


@pytest.fixture
def record() -> AuditRecord:
    return made()


def gate(tmp_path: Path, record: AuditRecord, *words: str):  # type: ignore[no-untyped-def]
    write_audit(tmp_path / AUDIT, record)
    return CliRunner().invoke(app, ["gate", str(tmp_path / AUDIT), *words])


def test_exit_codes(tmp_path: Path, record: AuditRecord) -> None:
    assert gate(tmp_path, record, "--max-ece", "0.06").exit_code == 0
    assert gate(tmp_path, record, "--max-ece", "0.04").exit_code == 1
    assert gate(tmp_path, record, "--max-shifted-ece", "0.2", "--where", "corruption=rain").exit_code == 2
    assert gate(tmp_path, record, "--max-ece", "0.052").exit_code == 0, "without --strict the value decides"
    strict = gate(tmp_path, record, "--max-ece", "0.052", "--strict")
    assert strict.exit_code == 2, "the interval is 0.04 to 0.06"
    assert "not judged" in strict.output
    assert gate(tmp_path, record, "--max-ece", "0.07", "--strict").exit_code == 0
    assert gate(tmp_path, record, "--max-ece", "0.03", "--strict").exit_code == 1


def test_one_failure_fails_all(tmp_path: Path, record: AuditRecord) -> None:
    answer = gate(tmp_path, record, "--max-ece", "0.06", "--min-accuracy", "0.99", "--max-shifted-ece", "0.2")
    assert answer.exit_code == 1
    assert "| clean accuracy | ≥ 99.0 % | 90.0 % |" in answer.output
    assert "failed" in answer.output
    unjudged = gate(tmp_path, made(shifts=[], shifted=None), "--max-ece", "0.06", "--max-shifted-ece", "0.2")
    assert unjudged.exit_code == 2, "what cannot be judged has not passed"
    assert "there is no such test set" in unjudged.output
    nothing = gate(tmp_path, record, "--max-ece", "0.06", "--where", "severity>=4")
    assert nothing.exit_code == 2
    assert "a condition that some shifted test set of the audit meets" in nothing.output


def test_conditions_choose_shifted_sets(record: AuditRecord) -> None:
    def value(*where: str) -> float:
        [check] = checks(record, Limits(max_shifted_ece=0.5), where)
        return check.value

    assert value() == pytest.approx((0.1 + 0.2 + 0.3) / 3)
    assert value("corruption=fog") == pytest.approx(0.15)
    assert value("severity<=1") == pytest.approx(0.2)  # fog 1 and snow 1
    assert value("corruption=fog", "severity=2") == pytest.approx(0.2)
    for bad in ("fog", "severity=high", "colour=red", "corruption<=fog"):
        with pytest.raises(ValueError, match="`where` should be corruption=NAME"):
            value(bad)


def test_a_set_without_severity_meets_no_condition_on_it(record: AuditRecord) -> None:
    camera = record.shifts[0].model_copy(update={"shift": "camera", "severity": None, "ece": 0.9})
    mixed = record.model_copy(update={"shifts": (*record.shifts, camera)})
    [check] = checks(mixed, Limits(max_shifted_ece=0.5), ["severity<=1"])
    assert check.value == pytest.approx(0.2)


def test_strictly_the_value_counts_too_where_the_interval_lies_below_it(tmp_path: Path, record: AuditRecord) -> None:
    """As in audits of earlier versions, with the basic bootstrap's interval: strict is never milder."""
    low = record.clean.model_copy(update={"ece": 0.0196, "ece_low": 0.0, "ece_high": 0.0186})
    one = record.model_copy(update={"clean": low})
    assert gate(tmp_path, one, "--max-ece", "0.0191", "--strict").exit_code == 2
    assert gate(tmp_path, one, "--max-ece", "0.0197", "--strict").exit_code == 0
    assert gate(tmp_path, one, "--max-ece", "0.0191").exit_code == 1
    assert gate(tmp_path, one, "--max-ece", "0.01", "--strict").exit_code == 2
    assert gate(tmp_path, one, "--min-accuracy", "0.95", "--strict").exit_code == 1
    assert gate(tmp_path, one, "--min-accuracy", "0.91", "--strict").exit_code == 2


def test_after_a_calibrator_there_is_no_interval(tmp_path: Path, record: AuditRecord) -> None:
    words = ("--max-ece", "0.04", "--calibrator", "temperature")
    assert gate(tmp_path, record, *words).exit_code == 0
    strict = gate(tmp_path, record, *words, "--strict")
    assert strict.exit_code == 2
    assert "| clean ECE | ≤ 4.0 % | 2.5 % | – | not judged: there are no intervals after a calibrator" in strict.output


def test_calibrators_have_the_names_that_audit_takes() -> None:
    scaled = {"temperature (augmented)": {"accuracy": 0.9, "ece": 0.02}}
    one = made(clean=cell(0.05, scaled=scaled), shifts=[], shifted=None)
    [check] = checks(one, Limits(max_ece=0.03, calibrator="temperature-augmented"))
    assert check.value == pytest.approx(0.02)


def test_a_summary_that_cannot_be_written_is_not_a_failure(tmp_path: Path, record: AuditRecord) -> None:
    answer = gate(tmp_path, record, "--max-ece", "0.06", "--summary", str(tmp_path / "no" / "such" / "folder"))
    assert answer.exit_code == 2


def test_the_worst_set_and_calibrators_are_judged(record: AuditRecord) -> None:
    [worst] = checks(record, Limits(max_worst_ece=0.25))
    assert worst.value == pytest.approx(0.3)
    [after] = checks(record, Limits(max_shifted_ece=0.25, calibrator="temperature"))
    assert after.value == pytest.approx((0.05 + 0.1 + 0.15) / 3)
    with pytest.raises(ValueError, match="`calibrator` should be one of temperature"):
        checks(record, Limits(max_ece=0.1, calibrator="vector"))


def test_accuracy_has_wilsons_interval() -> None:
    reference = stats.binomtest(180, 200).proportion_ci(method="wilson")
    assert wilson(0.9, 200) == pytest.approx((reference.low, reference.high), abs=1e-6)


def test_the_summary_is_for_a_pull_request(tmp_path: Path, record: AuditRecord) -> None:
    path = tmp_path / "summary.md"
    assert gate(tmp_path, record, "--max-ece", "0.06", "--summary", str(path)).exit_code == 0
    assert path.read_text() == summary(record, checks(record, Limits(max_ece=0.06)), strict=False)
    assert path.read_text().startswith("### Calibration gate: passed")
    assert "| clean ECE | ≤ 6.0 % | 5.0 % | 4.0 % to 6.0 % | passed |" in path.read_text()
    assert overall([], strict=False) == "not judged"


def test_names_in_the_summary_are_no_markdown(record: AuditRecord) -> None:
    model = record.model.model_copy(update={"name": "<b>x</b>|[y](http://z)"})
    text = summary(record.model_copy(update={"model": model, "verdict": ("a [b](c)",)}), (), strict=False)
    assert r"\<b\>x\</b\>\|\[y\](http://z)" in text
    assert r"a \[b\](c)" in text


def test_the_summary_says_what_was_judged(tmp_path: Path, record: AuditRecord) -> None:
    answer = gate(
        tmp_path, record, "--max-worst-ece", "0.5", "--where", "corruption=fog", "--calibrator", "temperature"
    )
    assert "model.onnx after temperature on photos" in answer.output
    assert "Shifted test sets with corruption=fog: 2 of 3; without snow." in answer.output
    assert "| worst shifted ECE (fog 2) |" in answer.output
    assert "Shifted test sets with" not in gate(tmp_path, record, "--max-ece", "0.1").output


def test_the_summary_is_for_programs_too(tmp_path: Path, record: AuditRecord) -> None:
    place = tmp_path / "found.json"
    assert gate(tmp_path, record, "--max-ece", "0.04", "--where", "severity<=1", "--summary", str(place)).exit_code == 1
    found = json.loads(place.read_text())
    assert (found["result"], found["where"], found["shifted_sets"]) == ("failed", ["severity<=1"], 2)
    assert (
        found["checks"][0] | {"name": "clean ECE", "limit": 0.04, "value": 0.05, "result": "failed"}
        == found["checks"][0]
    )


def test_a_value_next_to_its_limit_shows_the_digits_that_differ(record: AuditRecord) -> None:
    text = summary(record, checks(record, Limits(max_ece=0.049_96)), strict=False)
    assert "| clean ECE | ≤ 4.996 % | 5.000 % |" in text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"audit_schema": 99}', '{"audit_schema": 1, "clean": 3}'])
def test_what_is_no_audit_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / AUDIT).write_text(content)
    answer = CliRunner().invoke(app, ["gate", str(tmp_path), "--max-ece", "0.1"])
    assert answer.exit_code == 2
    assert len(answer.stderr.strip().splitlines()) == 1


def test_wrong_limits_are_named(tmp_path: Path, record: AuditRecord) -> None:
    assert "should be given, such as --max-ece" in gate(tmp_path, record).output
    percent = gate(tmp_path, record, "--max-ece", "5")
    assert percent.exit_code == 2
    assert "0.05 for 5 %" in percent.output


def test_torch_is_not_imported(tmp_path: Path, record: AuditRecord) -> None:
    write_audit(tmp_path / AUDIT, record)
    program = (
        "import sys\nfrom shiftcal.cli import app\n"
        f"try:\n    app(['gate', {str(tmp_path)!r}, '--max-ece', '0.06'])\nexcept SystemExit as end:\n"
        "    assert end.code == 0, end.code\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
