import math
from pathlib import Path

import pytest
from made_records import metrics, record
from scipy import stats
from typer.testing import CliRunner

from shiftcal.cli import app
from shiftcal.records import RunRecord, write_record
from shiftcal.report.choose import with_methods, with_weights, without_shifts
from shiftcal.report.intervals import Difference, difference, student_t
from shiftcal.report.page import write_report
from shiftcal.report.paired import differences, markdown

SHIFTED = "Mean over shifts: difference to ce"


@pytest.fixture
def records() -> list[RunRecord]:
    given = {"ce": (0.2, 0.3, 0.25), "fgr": (0.1, 0.21, 0.16), "dfl": (0.2, 0.1, 0.4)}
    return [record(name, seed, ece) for name, values in given.items() for seed, ece in reversed([*enumerate(values)])]


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 9, 30])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_students_t(degrees: int, level: float) -> None:
    assert student_t(degrees, level) == pytest.approx(stats.t.ppf(0.5 + level / 2, degrees), rel=1e-9)


def test_the_interval_is_that_of_a_paired_t_test() -> None:
    mine, theirs = [3.0, 5.0, 4.5, 6.0], [1.0, 2.0, 3.0, 7.0]
    found = difference(mine, theirs)
    reference = stats.ttest_rel(mine, theirs).confidence_interval(0.95)
    assert found.mean - found.half_width == pytest.approx(reference.low)
    assert found.mean + found.half_width == pytest.approx(reference.high)


def test_one_seed_shows_nothing() -> None:
    assert difference([3.0], [1.0]) == Difference(2.0, None)
    assert not difference([3.0], [1.0]).shown


def test_bold_is_what_the_interval_carries(records: list[RunRecord]) -> None:
    rows = {name: cells for name, *cells in differences(records, "ce")[SHIFTED]}
    width = 4.302653 * 0.57735 / math.sqrt(3)  # of differences −10, −9 and −9
    assert rows["fgr (3 seeds)"][1] == f"**−9.33 ± {width:.2f}**"
    assert not rows["dfl (3 seeds)"][1].startswith("**")
    assert rows["dfl (3 seeds)"][1].startswith("−1.67 ± ")


def test_seeds_are_paired_whatever_their_order(records: list[RunRecord]) -> None:
    assert differences(records[::-1], "ce") == differences(records, "ce")


def test_only_seeds_of_both_are_compared(records: list[RunRecord]) -> None:
    some = [r for r in records if not (r.method == "fgr" and r.seed == 2)]
    assert [row[0] for row in differences(some, "ce")[SHIFTED]] == ["dfl (3 seeds)", "fgr (2 seeds)"]
    none = [r for r in records if r.method != "fgr" or r.seed == 2]
    none = [r for r in none if r.method != "ce" or r.seed < 2]
    assert [row[0] for row in differences(none, "ce")[SHIFTED]] == ["dfl (2 seeds)"]


def test_an_unknown_reference_is_named(records: list[RunRecord]) -> None:
    with pytest.raises(ValueError, match=r"`against` should be .*fgr"):
        markdown(records, "cf")


def test_the_page_shows_them(records: list[RunRecord], tmp_path: Path) -> None:
    page = write_report(tmp_path, records, "t", against="ce").read_text()
    assert '<td class="best" data-value="-9.33">−9.33 ± 1.43</td>' in page
    assert "| fgr (3 seeds) |" in (tmp_path / "table.md").read_text()


def test_means_without_a_shift() -> None:
    [found] = without_shifts([record("ce", 0, 0.1)], ["snow"])
    evaluation = found.evaluation
    assert {cell.shift for cell in evaluation.shifts} == {"fog"}
    assert evaluation.shifted is not None
    assert evaluation.shifted.ece == pytest.approx(0.15)  # of 0.1 and 0.2
    assert evaluation.shifted.value("clean/ece") == pytest.approx(0.15)
    assert evaluation.reliability.shifted is None, "these cells hold no bins"
    with pytest.raises(ValueError, match=r"`without` should be .*fog, snow"):
        without_shifts([found, record("ce", 1, 0.1)], ["rain"])


def test_bins_are_pooled_without_a_shift() -> None:
    def cell(shift: str, count: int, accuracy: float) -> dict[str, object]:
        bins = {"count": [0, count], "confidence": [0.0, 0.8], "accuracy": [0.0, accuracy]}
        return {"shift": shift, "severity": 1, "n": count, **metrics(0.1), "bins": bins}

    one = record("ce", 0, 0.1, shifts=[cell("fog", 10, 0.5), cell("rain", 30, 0.9), cell("snow", 60, 0.1)])
    [found] = without_shifts([one], ["snow"])
    assert found.evaluation.reliability.shifted is not None
    assert found.evaluation.reliability.shifted.count == (0, 40)
    assert found.evaluation.reliability.shifted.accuracy == pytest.approx((0, 0.8))


def test_other_weights(records: list[RunRecord]) -> None:
    other = record("ce", 0, 0.02).evaluation
    one = record("ce", 0, 0.2, also={"average": other.model_dump(exclude_none=True)})
    [found] = with_weights([one], "average")
    assert found.evaluation.clean.ece == pytest.approx(0.002)
    assert found.weights.kept == "average"
    assert with_weights([found], "average") == [found]
    with pytest.raises(ValueError, match=r"`weights` should be .*average, last.*ce, seed 0: best_ece"):
        with_weights([one], "best_ece")


def test_chosen_methods(records: list[RunRecord]) -> None:
    assert with_methods(records, ["fgr"]) == [r for r in records if r.method == "fgr"] != []
    assert with_methods(records, ["fgr", "ce"]) == [r for r in records if r.method in ("ce", "fgr")]
    with pytest.raises(ValueError, match=r"`methods` should be .*Did you mean 'fgr'"):
        with_methods(records, ["ce", "fgrr"])


def test_the_command_takes_them(records: list[RunRecord], tmp_path: Path) -> None:
    for r in records:
        (tmp_path / f"{r.method}-{r.seed}").mkdir()
        write_record(tmp_path / f"{r.method}-{r.seed}" / "record.json", r)
    run = CliRunner().invoke(app, ["report", str(tmp_path), "--against", "ce", "--without", "snow"])
    assert run.exit_code == 0, run.output
    assert "| Mean over shifts: difference to ce |" in run.output
    assert "| fgr (3 seeds) |" in run.output
    run = CliRunner().invoke(app, ["report", str(tmp_path), "--methods", "fgr"])
    assert run.exit_code == 0, run.output
    assert ("| fgr |" in run.output, "| ce |" in run.output) == (True, False)
    run = CliRunner().invoke(app, ["report", str(tmp_path), "--weights", "average"])
    assert run.exit_code == 2


def test_a_seed_of_one_method_alone_takes_no_column_away() -> None:
    lacking = record("ce", 3, 0.3)
    evaluation = lacking.evaluation.model_copy(update={"shifted": None, "shifts": ()})
    records = [record(m, s, 0.1 + s / 10) for m in ("ce", "fgr") for s in (0, 1)]
    expected = differences(records, "ce")
    assert "Mean over shifts: difference to ce" in expected
    assert differences([*records, lacking.model_copy(update={"evaluation": evaluation})], "ce") == expected


def test_a_third_method_takes_no_part_away() -> None:
    records = [record(m, s, e) for m, e in (("ce", 0.2), ("fgr", 0.1)) for s in (0, 1)]
    records += [record("dfl", s, 0.15, shifts=[], shifted=None) for s in (0, 1)]
    found = differences(records, "ce")
    assert [row[0] for row in found["Mean over shifts: difference to ce"]] == ["fgr (2 seeds)"]
