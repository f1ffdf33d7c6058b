import io
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from made_audits import made
from made_records import BINS, metrics, record
from PIL import Image

from shiftcal.experiments.grid import REPORT_FILES
from shiftcal.methods import METHODS
from shiftcal.records import SELECTION, Bins, RunRecord
from shiftcal.report.audit import page_of as audits_page
from shiftcal.report.audit import print_audit
from shiftcal.report.choose import pooled
from shiftcal.report.figures import colour_of, reliability_figure
from shiftcal.report.figures.severity import curve_of
from shiftcal.report.page import write_report
from shiftcal.report.table import COLUMNS, best, markdown, rows_of
from shiftcal.report.terminal import print_table


def with_config(r: RunRecord, **config: Any) -> RunRecord:
    return r.model_copy(update={"config": r.config | config})


@pytest.fixture
def records() -> list[RunRecord]:
    return [record("fgr", 0, 0.05), record("ce", 0, 0.2), record("ce", 1, 0.3), record("fgr", 1, 0.07)]


def test_rows_are_methods_in_the_order_of_the_table_with_mean_and_deviation(records: list[RunRecord]) -> None:
    rows = rows_of(records)
    assert [row.method for row in rows] == ["ce", "fgr"]
    assert rows[0].text("Mean over shifts", COLUMNS[1]) == f"25.00 ± {100 * statistics.stdev([0.2, 0.3]):.2f}"
    assert rows_of(records[:1])[0].text("Mean over shifts", COLUMNS[1]) == "5.00"


def test_the_best_is_what_every_interval_carries() -> None:
    def found(**errors: tuple[float, ...]) -> str | None:
        made = [record(name, seed, ece) for name, own in errors.items() for seed, ece in enumerate(own)]
        row = best(rows_of(made), "Mean over shifts", COLUMNS[1])
        return row.method if row else None

    assert found(ce=(0.2, 0.3, 0.25), fgr=(0.1, 0.21, 0.16)) == "fgr"
    assert found(ce=(0.2, 0.3, 0.25), fgr=(0.1, 0.21, 0.16), dfl=(0.11, 0.2, 0.17)) is None, "as good as dfl by chance"
    assert found(ce=(0.2,), fgr=(0.1,)) is None, "one seed carries nothing"
    assert found(ce=(0.2, 0.3, 0.25), fgr=(0.1,)) is None, "nor does one seed that both have"
    assert found(ce=(0.2, 0.3, 0.25)) is None
    made = [record("ce", s, 0.2 + s / 10, clean=metrics(0.02, accuracy=0.99)) for s in range(2)]
    made += [record("fgr", s, 0.1 + s / 10) for s in range(2)]
    assert best(rows_of(made), "In distribution", COLUMNS[0]).method == "ce", "accuracy is better when higher"
    text = markdown(made)
    assert "| ce | **99.0 ± 0.0** |" in text
    assert "In bold: better than every other row" in text
    assert "In bold" not in markdown([r for r in made if r.seed == 0])


def test_records_on_other_data_are_not_compared(records: list[RunRecord]) -> None:
    records[0] = with_config(records[0], data={"name": "cifar10"})
    with pytest.raises(ValueError, match=r"same data and shifts. .*data.name"):
        rows_of(records)


def test_seeds_may_differ_and_nothing_else(records: list[RunRecord]) -> None:
    assert len(rows_of([with_config(r, seed=r.seed) for r in records])) == 2


def test_domains_held_out_in_turn_are_averaged(records: list[RunRecord]) -> None:
    held = []
    for r, ece in zip(records, (0.05, 0.15, 0.25, 0.35), strict=True):
        for holdout, more in (("art", 0.0), ("sketch", 0.1)):
            held.append(with_config(record(r.method, r.seed, ece + more), data={"name": "pacs", "holdout": holdout}))
    rows = rows_of(held)
    # One value per seed, the mean over both domains: the deviation is that over seeds.
    assert rows[0].text("Mean over shifts", COLUMNS[1]) == f"25.00 ± {100 * statistics.stdev([0.2, 0.3]):.2f}"
    with pytest.raises(ValueError, match=r"the same domains for each seed. .*fgr without some"):
        rows_of(held[1:])
    with pytest.raises(ValueError, match=r"that hold out the same domains. .*\['art'\]"):
        rows_of([r for r in held if r.method == "fgr" or r.config["data"]["holdout"] == "art"])


def test_figures_and_page_of_domains_held_out_in_turn(tmp_path: Path) -> None:
    held = []
    for method in ("ce", "fgr"):
        for holdout in ("art", "sketch"):
            one = record(method, 0, 0.1, shifts=[{"shift": holdout, "severity": 1, **metrics(0.1)}])
            held.append(with_config(one, data={"name": "pacs", "holdout": holdout}))
    assert write_report(tmp_path, held, "pacs").is_file()
    assert (tmp_path / "severity.png").is_file()


def test_other_test_sets_have_a_part_of_their_own(records: list[RunRecord]) -> None:
    more = {"other_tests": {"val": metrics(0.4)}, "clean_is_validation": True}
    changed = [record(r.method, r.seed, 0.1, **more) for r in records]
    text = markdown(changed)
    assert "| Also: val | Acc." in text
    assert "40.00" in text
    assert "| In distribution (the validation set) | Acc." in text
    changed[0] = record("fgr", 0, 0.1, clean_is_validation=True)
    assert "Also" not in markdown(changed), "only what every row has"


def test_what_was_not_measured_is_a_dash(records: list[RunRecord]) -> None:
    bare = {"accuracy": 0.9, "nll": 0.5, "ece": 0.1}
    text = markdown([*records, record("mine", 0, 0.1, clean=bare, shifted=bare)])
    assert "| mine | 90.0 | 10.00 | – | – | – | 0.500 |" in text


def test_markdown_and_terminal(records: list[RunRecord], capsys: pytest.CaptureFixture[str]) -> None:
    text = markdown(records)
    assert "| In distribution | Acc. | ECE | w/ TS | CECE | ACE | NLL |" in text
    assert "| 6.00 ± 1.41 |" in text
    assert text.count("\n| fgr |") == 2
    print_table(records)
    shown = capsys.readouterr().out
    assert "Mean over shifts" in shown
    assert "25.00" in shown


def test_unlike_runs_are_not_compared_and_unknown_methods_come_last(records: list[RunRecord]) -> None:
    records[0] = record("mine", 0, 0.05)
    assert [row.method for row in rows_of(records)] == ["ce", "fgr", "mine"]
    records[1] = with_config(records[1], evaluation={"bins": 10})
    with pytest.raises(ValueError, match=r"`records` should be of runs on the same data and shifts. .*evaluation.bins"):
        rows_of(records)


def test_runs_are_averaged_over_seeds_alone(records: list[RunRecord]) -> None:
    with pytest.raises(
        ValueError, match=r"`records` should be of one run per method and seed. .*two of ce with seed 1"
    ):
        markdown([*records, records[2]])
    records[2] = with_config(records[2], train={"weight_decay": 0.1})
    with pytest.raises(
        ValueError, match=r"`records` should be of runs that differ in method and seed alone. .*train.weight_decay"
    ):
        rows_of(records)


def test_a_single_row_is_not_the_best(records: list[RunRecord]) -> None:
    assert "**" not in markdown(records[:1])


def test_a_method_has_one_colour() -> None:
    colours = [colour_of(method) for method in METHODS]
    assert len(set(colours)) == len(METHODS)
    assert colour_of("unheard of") not in colours


def test_pools_bins_by_their_counts() -> None:
    a = Bins(count=(2, 0), confidence=(0.4, 0.0), accuracy=(0.5, 0.0))
    b = Bins(count=(6, 0), confidence=(0.2, 0.0), accuracy=(0.1, 0.0))
    found = pooled([a, b])
    assert found.count == (8, 0)
    assert found.confidence == pytest.approx((0.25, 0))
    assert found.accuracy == pytest.approx((0.2, 0))


def test_red_is_overconfidence() -> None:
    def share(confidence: float, colour: tuple[int, int, int]) -> int:
        bins = {"count": [4, 4], "confidence": [0.4, confidence], "accuracy": [0.4, 0.7]}
        figure = reliability_figure([record("ce", 0, 0.1, reliability={"clean": bins, "shifted": bins})])
        with Image.open(io.BytesIO(figure)) as image:
            return {c: n for n, c in image.convert("RGB").getcolors(1 << 24)}.get(colour, 0)

    red, yellow = (0xE0, 0x7A, 0x85), (0xF0, 0xBF, 0x6C)
    assert share(0.95, red) > 1000 > share(0.95, yellow)
    assert share(0.55, yellow) > 1000 > share(0.55, red)


def test_curves_start_at_the_clean_set() -> None:
    evaluation = record("fgr", 0, 0.05).evaluation
    assert curve_of(evaluation, None) == pytest.approx([0.005, 0.05, 0.1])
    first = evaluation.shifts[0].model_copy(update={"ece": 0.07})  # fog, severity 1
    evaluation = evaluation.model_copy(update={"shifts": (first, *evaluation.shifts[1:])})
    assert curve_of(evaluation, "fog") == pytest.approx([0.005, 0.07, 0.1])
    assert curve_of(evaluation, None) == pytest.approx([0.005, 0.06, 0.1])


def test_page_is_self_contained_and_figures_are_pictures(records: list[RunRecord], tmp_path: Path) -> None:
    records.append(record("<mine>", 0, 0.5))
    page = write_report(tmp_path, records, "a <title>")
    text = page.read_text()
    figures, tables = ["reliability.png", "severity.png"], ["shifts.md", "shifts.tex", "table.md", "table.tex"]
    tables += ["cost.md", "values.csv"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*figures, *tables, "report.html"])
    assert {p.name for p in tmp_path.iterdir()} | {SELECTION} == REPORT_FILES, (
        "a grid's directory may hold these beside its runs"
    )
    assert "a &lt;title&gt;" in text
    assert "&lt;a chip&gt; &amp; co" in text
    assert "<a chip>" not in text
    assert "<td>&lt;mine&gt;</td>" in text
    assert "<mine>" not in text
    assert 'data-value="0.06">6.00 ± 1.41</td>' in text
    assert '<td data-value="0.25">25.00 ± 7.07</td>' in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "nothing is loaded from elsewhere"
    for name in ("reliability.png", "severity.png"):
        with Image.open(tmp_path / name) as image:
            assert min(image.size) > 300
            assert len(image.convert("RGB").resize((64, 64)).getcolors(64 * 64)) > 20


def test_without_shifts_the_table_has_one_half(tmp_path: Path) -> None:
    none = {"shifted": None, "shifts": [], "reliability": {"clean": BINS}}
    write_report(tmp_path, [record(method, 0, 0.1, **none) for method in ("ce", "fgr")], "t")
    assert "Mean over shifts" not in (tmp_path / "table.md").read_text()
    assert not (tmp_path / "severity.png").exists()


@pytest.mark.parametrize("columns", [30, 50, 80, 200])
def test_a_narrow_terminal_has_fewer_columns_and_whole_numbers(
    columns: int, records: list[RunRecord], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(records)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    rows = [line.split() for line in shown.splitlines() if line.strip().startswith(("ce ", "fgr "))]
    assert len(rows) == 4
    assert not any("…" in word for row in rows for word in row)
    assert ("Too narrow for" in shown) is (columns < 100)
    assert all(len(row) == len(rows[0]) for row in rows)


@pytest.mark.parametrize("columns", [60, 200])
def test_a_narrow_terminal_is_told_what_an_audit_has_more(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    print_audit(made())
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert ("Too narrow for" in shown) is (columns == 60)
    assert ("90 %" in shown.partition("Too narrow")[0]) is (columns == 200)


def test_a_pipe_has_no_width_to_fit(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_audit(made())
    assert "Too narrow for" not in capsys.readouterr().out


def test_what_is_not_counted_is_said_where_methods_are_compared_alone() -> None:
    """Two data sets, of which one is the harder: nothing is compared, and nothing left out."""
    made = [record("ce", s, 0.2, clean=metrics(0.02, 0.9)) for s in (0, 1)]
    made += [with_config(record("ce", s, 0.2, clean=metrics(0.02, 0.3)), data={"name": "harder"}) for s in (0, 1)]
    assert "harder" in markdown(made)
    assert "not counted" not in markdown(made)


def test_a_page_of_many_audits_draws_the_first_twelve() -> None:
    assert audits_page([made()] * 14).data["hidden"] == [12, 13]
    assert audits_page([made()] * 12).data["hidden"] == []
