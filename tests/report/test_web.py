"""What the page says and draws from, without a browser."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from made_audits import made
from made_records import BINS, held_out, metrics, record
from typer.testing import CliRunner

from shiftcal.cli import app
from shiftcal.records import Bins, DataSeen, Histogram, write_grid
from shiftcal.records.audit import AUDIT, write_audit
from shiftcal.records.gallery import GALLERY, Sample, galleries_of, key_of, read_gallery, write_gallery
from shiftcal.report.audit import page_of as audit_page
from shiftcal.report.cost import rows_of as cost_rows
from shiftcal.report.page import write_report
from shiftcal.report.table import difference_of, learned, markdown, rows_of
from shiftcal.report.web import data as data_module
from shiftcal.report.web.data import CLASSES, as_json, coded, packed, page_data
from shiftcal.report.web.entries import of_audit, of_run
from shiftcal.report.web.html import Cell, Table
from shiftcal.report.web.html import _table as table_html
from shiftcal.report.web.metrics import METRICS, value_of
from shiftcal.report.web.words import comparison_of

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n rest").decode()


def runs(eces: dict[str, list[float]], accuracy: float = 0.9) -> list[Any]:
    return [record(m, seed, ece) for m, some in eces.items() for seed, ece in enumerate(some)]


def data_of(page: str) -> Any:
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def test_the_lowest_error_is_named_with_what_the_intervals_carry() -> None:
    shifted, clean, *_ = comparison_of(
        runs({"ce": [0.2, 0.21, 0.19], "fgr": [0.1, 0.11, 0.09], "dfl": [0.1, 0.13, 0.08]})
    ).sentences()
    assert shifted.startswith("Under shift, fgr has the lowest calibration error: ECE 10.00 ± 1.00 %")
    assert "the highest is that of ce: ECE 20.00 ± 1.00 %" in shifted
    assert shifted.endswith("Chance may explain the difference to dfl.")
    assert clean.startswith("In distribution, fgr has the lowest")
    told, *_ = comparison_of(runs({"ce": [0.2, 0.21, 0.19], "fgr": [0.1, 0.11, 0.09]})).sentences()
    assert told.endswith("All others are higher, by 95 % intervals over seeds.")


def test_one_seed_shows_nothing_of_chance() -> None:
    first, *_ = comparison_of(runs({"ce": [0.2], "fgr": [0.1]})).sentences()
    assert first.endswith("fgr shares no two seeds with another: how much of this is chance is not known.")


def test_only_seeds_that_both_have_are_compared() -> None:
    records = [record("ce", 0, 0.2), record("ce", 1, 0.3), record("fgr", 1, 0.1), record("fgr", 2, 0.4)]
    row, other = comparison_of(records).rows
    difference = difference_of(other, row, "Mean over shifts", "ece")
    assert difference is not None
    assert difference.mean == pytest.approx(-0.2), "seed 1 alone"
    assert difference.half_width is None


def test_the_price_in_clean_accuracy() -> None:
    records = [record("ce", s, 0.2, clean=metrics(0.02, 0.95)) for s in (0, 1, 2)]
    records += [record("fgr", s, 0.1, clean=metrics(0.01, 0.94 + s / 1000)) for s in (0, 1, 2)]
    last = comparison_of(records).sentences()[-1]
    assert last == "Clean, fgr is right 0.9 points less often than ce (95 % interval over seeds: ± 0.2)."
    numbers = comparison_of(records).numbers()
    assert [n.title for n in numbers] == ["ECE clean, fgr", "ECE under shift, fgr"]
    assert numbers[1].note == "ce: 20.00 ± 0.00 %"


def test_a_network_that_has_learned_little_is_not_counted() -> None:
    records = [record("ce", s, 0.2 + s / 100, clean=metrics(0.02, 0.8)) for s in (0, 1, 2)]
    records += [record("dfl", s, 0.15 + s / 100, clean=metrics(0.03, 0.4)) for s in (0, 1, 2)]
    records += [record("fgr", s, 0.01, clean=metrics(0.01, 0.39)) for s in (0, 1, 2)]
    found = comparison_of(records)
    shifted, clean, _, last = found.sentences()
    assert shifted.startswith("Under shift, dfl has the lowest calibration error: ECE 16.00 ± 1.00 %")
    assert clean.startswith("In distribution, ce has the lowest calibration error: ECE 2.00 ± 0.00 %")
    assert last.startswith("Not counted: fgr, which is right 39.0 ± 0.0 % of the time.")
    written = markdown(records)
    assert "| dfl | 40.0 ± 0.0 | 3.00 ± 0.00 |" in written
    assert "| dfl | 90.0 ± 0.0 | **16.00 ± 1.00** |" in written, "bold without the one that is not counted"
    assert "fgr not counted: right less than half as often as the best." in written
    assert "not counted" not in markdown(records[:6])
    rows = rows_of([record(m, 0, 0.1, clean=metrics(0.1, a)) for m, a in (("ce", 0.3), ("fgr", 0.8))])
    assert [row.method for row in learned(rows)] == ["fgr"], "the best need not come first"
    assert [number.title for number in found.numbers()] == ["ECE clean, dfl", "ECE under shift, dfl"]
    assert not any("Not counted" in one for one in comparison_of(records[:6]).sentences()), "half as often is enough"


def test_of_many_methods_the_baseline_and_the_best_are_drawn(tmp_path: Path) -> None:
    names = ["ce", "ls", "mixup", "flsd53", "dfl", "maxent", "bsce-gra", "fgr", "filter-only", "rect-only"]
    names += ["fgr-shared", "fgr-ema", "ce+view", "dfl+view", "dfl+views"]
    records = [record(name, 0, 0.3 - place / 100) for place, name in enumerate(names)]
    little = record("augmix", 0, 0.01, clean=metrics(0.01, 0.2))
    assert comparison_of([*records, little]).telling(4) == ["ce", "ce+view", "dfl+view", "dfl+views"]
    assert comparison_of(records[:3]).telling(4) == names[:3]
    assert comparison_of(records[1:]).telling(2) == ["ls", "dfl+views"], "the first is the baseline without ce"
    page = write_report(tmp_path, records, "fifteen").read_text()
    drawn = [data_of(page)["methods"][place] for place in range(15) if place not in data_of(page)["hidden"]]
    assert drawn == ["ce", *names[4:]]
    few = write_report(tmp_path, records[:12], "twelve").read_text()
    assert data_of(few)["hidden"] == []


def test_several_settings_share_the_room(tmp_path: Path) -> None:
    configs = [record("ce", 0, 0.1).config | {"data": {"name": name}} for name in ("cifar10", "cifar100")]
    named = {"ce": 0.3, "ls": 0.2, "mixup": 0.25, "dfl": 0.1, "fgr": 0.05, "fgr+views": 0.02, "dfl+views": 0.03}
    records = [
        record(name, 0, ece, config=config | {"method": name}) for config in configs for name, ece in named.items()
    ]
    data = data_of(write_report(tmp_path, records, "two sets").read_text())
    assert len(data["methods"]) == 14
    assert len(data["hidden"]) == 2
    assert all(data["methods"][place].startswith("mixup (cifar10") for place in data["hidden"])


def test_a_run_by_itself() -> None:
    found = comparison_of([record("ce", 0, 0.2)]).sentences()
    assert found == [
        "In distribution, ce is right 90.0 % of the time; ECE 2.00 %.",
        "Under shift, ce is right 90.0 % of the time; ECE 20.00 %.",
    ]


def test_sets_and_values_are_those_of_the_records() -> None:
    data = page_data([of_run(record("ce", 0, 0.1)), of_run(record("fgr", 0, 0.2))])
    assert data["methods"] == ["ce", "fgr"]
    names = [(s["kind"], s["shift"], s["severity"]) for s in data["sets"]]
    assert names == [("clean", None, None), *(("shift", s, k) for s in ("fog", "snow") for k in (1, 2))]
    ece = [m["key"] for m in data["metrics"]].index("ece")
    assert data["runs"][1]["values"][""][ece] == [0.02, 0.2, 0.4, 0.2, 0.4]
    assert data["runs"][1]["values"]["clean"][ece] == [0.02, 0.2, 0.4, 0.2, 0.4]
    nll = [m["key"] for m in data["metrics"]].index("nll")
    assert data["runs"][1]["values"]["clean"][nll] is None, "made records have no NLL after scaling"
    assert data["runs"][0]["history"]["conflict_rate"] == [None, 0.25]


def test_what_is_measured_after_chosen_epochs_are_curves() -> None:
    epochs = [{"epoch": k, "loss": 1.0, "accuracy": 0.5, "seconds": 1.0} for k in (1, 2)]
    epochs[1]["test"] = {"clean": {"ece": 0.1, "accuracy": 0.8, "nll": 0.3}}
    epochs[1]["noise"] = {"all": {"cosine": 0.25, "cosine_error": 0.01}}
    [run] = page_data([of_run(record("ce", 0, 0.1, history=epochs))])["runs"]
    assert run["history"]["test clean ece"] == [None, 0.1]
    assert run["history"]["noise all cosine"] == [None, 0.25]


def test_runs_of_other_shifts_leave_gaps() -> None:
    other = record("fgr", 0, 0.2, shifts=[{"shift": "art", "severity": None, **metrics(0.3)}])
    data = page_data([of_run(record("ce", 0, 0.1)), of_run(other)])
    ece = [m["key"] for m in data["metrics"]].index("ece")
    assert data["runs"][0]["values"][""][ece][-1] is None
    assert data["runs"][1]["values"][""][ece] == [0.02, None, None, None, None, 0.3]


def test_bins_are_packed_without_loss_that_matters() -> None:
    bins = Bins(count=(0, 4, 6), confidence=(0.0, 0.61234, 0.9), accuracy=(0.0, 0.5, 1.0))
    assert packed(bins) == [3, 1, 4, 2, 6123, 2, 6, 6, 9000]


def test_histograms_add_up_over_severities() -> None:
    one = Histogram(right=(0, 3), wrong=(1, 0))
    shifts = [{"shift": "fog", "severity": k, **metrics(0.1), "histogram": one.model_dump()} for k in (1, 2)]
    clean = metrics(0.1) | {"histogram": one.model_dump()}
    [run] = page_data([of_run(record("ce", 0, 0.1, shifts=shifts, clean=clean))])["runs"]
    assert run["risk"] == {
        "clean": coded([2, 0, 0, 1, 1, 3, 0]),
        "shifted": coded([2, 0, 0, 2, 1, 6, 0]),
        "shift fog": coded([2, 0, 0, 2, 1, 6, 0]),
    }
    assert page_data([of_run(record("ce", 0, 0.1))])["runs"][0]["risk"] == {}


def test_of_many_classes_the_worst_are_shown() -> None:
    good = {"count": [10, 10], "confidence": [0.1, 0.9], "accuracy": [0.1, 0.9]}
    bad = {"count": [10, 10], "confidence": [0.1, 0.9], "accuracy": [0.5, 0.5]}
    reliability = {"clean": BINS, "clean_by_class": [good] * 50 + [bad] + [good] * 9}
    [shown] = page_data([of_run(record("ce", 0, 0.1, reliability=reliability))])["classes"]
    assert shown["of"] == 60
    assert len(shown["rows"]) == CLASSES
    assert shown["rows"][0][:2] == ["class 50", 0.4]


def test_the_heading_counts_each_set_once(tmp_path: Path) -> None:
    seen = DataSeen(name="shapes", classes=("a", "b"), counts={"test": 2000})
    records = [record("ce", 0, 0.2), record("ce", 1, 0.2).model_copy(update={"data": seen})]
    write_report(tmp_path, records, "runs")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "over 2 seeds · shapes (test 2,000) · 4 shifted test sets of 2 kinds" in text, "one said no counts"
    other = DataSeen(name="signs", classes=("a", "b"), counts={"test": 10})
    config = records[0].config | {"data": {"name": "signs"}}
    records.append(record("ce", 0, 0.2, config=config).model_copy(update={"data": other}))
    write_report(tmp_path, records, "runs")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "shapes (test 2,000) · signs (test 10) · 8 shifted test sets of 4 kinds" in text, "fog of each is its own"


def test_the_heading_names_the_domain_that_each_size_is_without(tmp_path: Path) -> None:
    records = []
    for domain, size in (("sketch", 605), ("<photo>", 833)):
        seen = DataSeen(name="pacs", classes=("a", "b"), counts={"test": size})
        records.append(held_out("ce", 0, domain, 0.2, 0.02).model_copy(update={"data": seen}))
    write_report(tmp_path, records, "runs")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "pacs without sketch (test 605) · pacs without &lt;photo&gt; (test 833)" in text


def test_columns_of_words_are_told_from_numbers() -> None:
    rows = [[Cell("ce"), Cell("0.5", 0.5, best=True), Cell("fitted")], [Cell("fgr"), Cell("–"), Cell("not fitted")]]
    text = table_html(Table("t", [("a", "", ""), ("b", "", "low"), ("c", "", "")], rows))
    assert '<td class="best" data-value="0.5">' in text
    assert '<td class="text">not fitted</td>' in text
    assert '<td data-value="">–</td>' in text


def test_what_differs_is_told_from_what_is_shared() -> None:
    config = {"data": {"name": "shapes"}, "evaluation": {"bins": 15}, "seed": 0, "gamma": {"fgr": 3.0}}
    other = config | {"seed": 1, "gamma": {"fgr": None}}
    found = page_data([of_run(record("fgr", s, 0.1, config=c)) for s, c in enumerate((config, other))])["config"]
    assert found["differing"] == ["gamma.fgr"], "not the seed, which the run is called by"
    assert found["own"] == [["3.0"], ["not set"]]
    assert found["common"]["data.name"] == "shapes"


def test_data_cannot_leave_its_element() -> None:
    text = as_json({"a": "</script><!-- & -->"})
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & -->"}


def test_every_metric_has_words_and_a_place() -> None:
    cell = made().clean
    assert all(metric.words.endswith(".") for metric in METRICS)
    assert {m.key: value_of(cell, m.key) for m in METRICS}["sets.aps.size"] == 1.4
    assert all(value_of(cell, metric.key) is not None for metric in METRICS)


def test_an_audit_carries_floors_intervals_and_calibrators() -> None:
    data = page_data([of_audit(made())])
    [run] = data["runs"]
    assert run["floor"] == [0.01] * 4
    assert run["interval"][1] == pytest.approx([0.09, 0.11])
    assert [state["key"] for state in data["states"]] == ["", "temperature"]
    page = audit_page([made()])
    assert page.verdict == ("Right 90.0 % of the time, says 95.0 %.",)
    assert page.numbers[0].note == "4.0 % to 6.0 % (95 %); chance alone: 1.0 %"


def test_samples_are_kept_beside_the_record(tmp_path: Path) -> None:
    assert read_gallery(tmp_path) == ()
    sample = Sample(shift="fog", severity=3, true="a", predicted="b", confidence=0.9, right=False, png=PNG)
    write_gallery(tmp_path, (sample,))
    assert read_gallery(tmp_path) == (sample,)


@pytest.mark.parametrize(
    "change",
    [
        {"png": "javascript:alert(1)"},
        {"png": base64.b64encode(b"<svg onload=x>").decode()},
        {"confidence": 2},
        {"true": 3},
    ],
)
def test_forged_samples_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    item = {"true": "a", "predicted": "b", "confidence": 0.9, "right": False, "png": PNG} | change
    (tmp_path / GALLERY).write_text(json.dumps({"schema": 1, "items": [item]}))
    with pytest.raises(ValueError, match=r"`gallery` should be what"):
        read_gallery(tmp_path)


def test_runs_and_audits_are_reported_apart(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    write_audit(tmp_path / "audit" / AUDIT, made())
    write_grid(tmp_path / "records.jsonl", [record("ce", 0, 0.1)])
    words = ["report", str(tmp_path / "audit"), str(tmp_path / "records.jsonl"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "runs, or audits, in one report" in done.output
    assert not (tmp_path / "out").exists()


def test_samples_of_runs_are_found_by_method(tmp_path: Path) -> None:
    sample = Sample(true="a", predicted="b", confidence=0.9, right=False, png=PNG)
    for name, method in (("one", "ce"), ("two", "fgr"), ("three", "dfl")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"method": method}))
    write_gallery(tmp_path / "one", (sample,))
    (tmp_path / "two" / GALLERY).write_text("{")
    with pytest.warns(UserWarning, match="two"):
        assert galleries_of([tmp_path, tmp_path / "nothing"]) == {key_of({"method": "ce"}): (sample,)}


def test_there_is_room_for_so_many_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "_PICTURES", 3 * len(PNG))
    sample = Sample(true="a", predicted="b", confidence=0.9, right=False, png=PNG)
    entries = [of_run(record(name, 0, 0.1), [sample] * 2) for name in ("ce", "fgr")]
    assert [one["method"] for one in page_data(entries)["gallery"]] == [0, 0]


def test_a_domain_has_no_severity() -> None:
    domain = {"shift": "sketch", "severity": 1, **metrics(0.3)}
    data = page_data([of_run(record("ce", 0, 0.1, shifts=[domain]))])
    assert data["sets"][1] == {"kind": "shift", "shift": "sketch", "severity": None}


def test_a_method_with_one_seed_is_told_from_one_that_chance_may_explain() -> None:
    records = [*runs({"ce": [0.2], "fgr": [0.1, 0.11, 0.09], "dfl": [0.1, 0.13, 0.08]})]
    shifted, *_ = comparison_of(records).sentences()
    assert "Chance may explain the difference to dfl." in shifted
    assert shifted.endswith("With ce it shares fewer than two seeds, which shows nothing.")


def changed(path: str, value: Any) -> dict[str, Any]:
    """A record's file with one value changed, by its dotted path."""
    tree = json.loads(record("fgr", 0, 0.1).to_json())
    *places, last = path.split(".")
    at: Any = tree
    for place in places:
        at = at[int(place)] if isinstance(at, list) else at[place]
    at[int(last) if isinstance(at, list) else last] = value
    return tree


@pytest.mark.filterwarnings("ignore:Left out")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("evaluation.reliability.clean.count.1", 10**400),
        ("evaluation.shifted.nll", 1.7e308),
        ("evaluation.shifted", None),
        ("evaluation.clean.histogram", {"right": [1, 2], "wrong": [1]}),
        ("evaluation.clean.smooth_ece", 1e308),
        ("history.0.epoch", 10**400),
        ("config.data.size", float("nan")),
    ],
    ids=["count", "nll", "shifted", "histogram", "smooth_ece", "epoch", "config"],
)
def test_a_forged_record_is_named_and_the_others_are_shown(path: str, value: Any, tmp_path: Path) -> None:
    lines = [record("ce", 0, 0.2).to_json(), json.dumps(changed(path, value))]
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Left out: 1" in page
    assert "line 2: damaged" in page


@pytest.mark.filterwarnings("ignore:Left out")
def test_damaged_audits_are_named_and_the_others_are_shown(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "all" / name).mkdir(parents=True)
        write_audit(tmp_path / "all" / name / AUDIT, made(model={"name": f"{name}.onnx", "kind": "onnx"}))
    (tmp_path / "all" / "b" / AUDIT).write_text("{")
    (tmp_path / "all" / "c" / GALLERY).write_text("{")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "all"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Left out: 2" in page
    assert "Audits of 2 models" in page
    refused = CliRunner().invoke(app, ["report", str(tmp_path / "all"), "--against", "a", "--out", str(tmp_path / "o")])
    assert (refused.exit_code, "left out for audits" in refused.output) == (2, True)


def test_a_swept_baseline_is_compared_value_by_value() -> None:
    def run(method: str, epochs: int, seconds: float) -> Any:
        config = {"data": {"name": "x"}, "evaluation": {"bins": 15}, "train": {"epochs": epochs}}
        return record(method, 0, 0.1, config=config, seconds={"train": seconds})

    records = [run("ce", 1, 10.0), run("ce", 2, 20.0), run("fgr", 1, 15.0), run("fgr", 2, 40.0)]
    [(_, rows)] = cost_rows(records)
    assert [(row[0], row[3]) for row in rows] == [
        ("ce, train.epochs 1", "1"),
        ("ce, train.epochs 2", "1"),
        ("fgr, train.epochs 1", "1.5"),
        ("fgr, train.epochs 2", "2"),
    ]


def test_what_an_earlier_report_left_does_not_stay(tmp_path: Path) -> None:
    write_report(tmp_path, [record("ce", 0, 0.1)], "t")
    assert (tmp_path / "shifts.md").is_file()
    none = {"shifted": None, "shifts": [], "reliability": {"clean": BINS}}
    write_report(tmp_path, [record("ce", 0, 0.1, **none)], "t")
    assert not (tmp_path / "shifts.md").exists()
    assert not (tmp_path / "severity.png").exists()
