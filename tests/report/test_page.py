"""The page in a real browser, made of the committed records and of forged ones."""

import base64
import csv
import io
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import Opened, browser
from made_audits import made
from made_records import held_out, record
from PIL import Image
from typer.testing import CliRunner

from shiftcal.cli import app
from shiftcal.metrics import ece_noise_floor
from shiftcal.records import RunRecord, load_records
from shiftcal.records.audit import AUDIT, write_audit
from shiftcal.records.gallery import Sample, key_of
from shiftcal.report.audit import write_audit_page
from shiftcal.report.labels import order_of
from shiftcal.report.page import write_report
from shiftcal.report.web.data import packed

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).parents[2] / "results" / "cifar10" / "seeds"
SELECTS = {"heat": ["method", "minus", "metric", "seed", "calibrator"], "severity": ["metric", "calibrator"]}
SELECTS |= {
    "tradeoff": ["calibrator"],
    "reliability": ["test set"],
    "risk": ["images"],
    "classes": ["method", "images"],
}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    return load_records(RESULTS)


def png(colour: str) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def test_a_shift_without_severities_has_one_cell_for_all(chromium: Any, tmp_path: Path) -> None:
    """Else it would stand under severity 1, as the clean images would."""
    page = Opened(chromium, write_audit_page(tmp_path, made())).page
    rows = page.locator("#heat tbody tr").all()
    spans = {
        row.locator("th").inner_text(): [td.evaluate("td => td.colSpan") for td in row.locator("td").all()]
        for row in rows
    }
    assert spans == {"clean": [2], "fog": [1, 1], "snow": [2]}


SAMPLES = [
    Sample(true="cat", predicted="cat", confidence=0.99, right=True, png=png("green")),
    Sample(true="cat", predicted="dog", confidence=0.61, right=False, png=png("blue")),
    Sample(true="ship", predicted="dog", confidence=0.93, right=False, png=png("red")),
    Sample(shift="fog", severity=3, true="ship", predicted="car", confidence=0.5, right=False, png=png("grey")),
]


@pytest.fixture(scope="module")
def report(records: list[RunRecord], tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = {key_of(next(r.config for r in records if r.method == "ce")): SAMPLES}
    return write_report(tmp_path_factory.mktemp("report"), records, "CIFAR-10", galleries=samples)


@pytest.fixture
def opened(chromium: Any, report: Path) -> Iterator[Opened]:
    found = Opened(chromium, report)
    yield found
    assert found.errors == []
    assert found.elsewhere == []
    found.page.context.close()


def select(opened: Opened, place: str, label: str) -> Any:
    return opened.page.locator(f"#{place} label").filter(has_text=label).first.locator("select")


def choose(opened: Opened, place: str, label: str, option: str) -> None:
    select(opened, place, label).select_option(label=option)


def mean(records: list[RunRecord], method: str, shift: str, severity: int, key: str = "ece") -> float:
    cells = [c for r in records if r.method == method for c in r.evaluation.shifts]
    return statistics.fmean(c.value(key) for c in cells if c.shift == shift and c.severity == severity)


def test_it_is_one_small_file(report: Path, records: list[RunRecord]) -> None:
    assert report.stat().st_size / len(records) < 58_900
    assert "://" not in report.read_text().replace("http://www.w3.org/2000/svg", "")


def test_a_link_to_a_part_leads_there(chromium: Any, report: Path) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    for part in ("coverage", "history"):
        page.goto(f"{report.as_uri()}#{part}")
        page.wait_for_selector("html[data-ready]")
        assert abs(page.locator(f"#{part}").bounding_box()["y"]) < 60, "drawn before the browser goes there"
    page.close()


def test_the_bins_of_a_run_arrive_as_they_were(opened: Opened, records: list[RunRecord], tmp_path: Path) -> None:
    with opened.page.expect_download() as waited:
        opened.page.get_by_role("button", name="Download JSON").click()
    waited.value.save_as(tmp_path / "data.json")
    found = json.loads((tmp_path / "data.json").read_text())["runs"]
    assert len(found) == len(records)
    for own, of in zip(found, sorted(records, key=lambda r: order_of(r.method)), strict=True):
        assert own["bins"][""][0] == packed(of.evaluation.clean.bins)
        assert own["bins"]["clean"][-1] == packed(of.evaluation.shifts[-1].scaled["clean"].bins)
        assert sum(own["risk"]["clean"][2::3]) + sum(own["risk"]["clean"][3::3]) == of.evaluation.clean.n


@pytest.mark.parametrize(("place", "label"), [(place, label) for place, some in SELECTS.items() for label in some])
def test_every_selector_changes_what_is_drawn(opened: Opened, place: str, label: str) -> None:
    before = opened.page.locator(f"#{place}").inner_html()
    control = select(opened, place, label)
    options = control.locator("option").all_inner_texts()
    control.focus()
    now = control.evaluate("(one) => one.options[one.selectedIndex].text")
    control.select_option(label=next(one for one in reversed(options) if one != now))
    after = opened.page.locator(f"#{place}").inner_html()
    assert after != before
    control = select(opened, place, label)
    assert control.evaluate("(one) => one === document.activeElement"), "the keyboard's focus stays where it was"
    control.select_option(label=now)
    assert opened.page.locator(f"#{place}").inner_html() == before


def test_heat_map_has_the_records_numbers(opened: Opened, records: list[RunRecord]) -> None:
    for method, shift, severity in (("ce", "gaussian_noise", 3), ("fgr", "fog", 5), ("dfl+views", "contrast", 1)):
        choose(opened, "heat", "method", method)
        cell = opened.page.locator(f'#heat button[aria-label^="{shift.replace("_", " ")} {severity}:"]')
        assert cell.inner_text() == f"{100 * mean(records, method, shift, severity):.2f}"
    choose(opened, "heat", "minus", "ce")
    cell = opened.page.locator('#heat button[aria-label^="contrast 1:"]')
    change = mean(records, "dfl+views", "contrast", 1) - mean(records, "ce", "contrast", 1)
    assert cell.inner_text() == f"{100 * change:+.2f}".replace("-", "−")
    choose(opened, "heat", "minus", "nothing")
    choose(opened, "heat", "metric", "NLL")
    choose(opened, "heat", "calibrator", "after temperature, fitted on clean validation images")
    expected = mean(records, "dfl+views", "contrast", 1, "clean/nll")
    cell = opened.page.locator('#heat button[aria-label^="contrast 1:"]')
    assert float(cell.inner_text()) == pytest.approx(expected, abs=6e-4)


def test_points_have_the_tables_numbers(opened: Opened, records: list[RunRecord]) -> None:
    own = [r.evaluation.shifted for r in records if r.method == "fgr"]
    points = opened.page.locator("#tradeoff circle title")
    assert points.count() == 2 * len({r.method for r in records}), "clean and shifted, those that the legend hides too"
    accuracy, ece = (100 * statistics.fmean(mean.value(key) for mean in own) for key in ("accuracy", "ece"))
    assert f"fgr: right {accuracy:.1f} %, ECE {ece:.2f} %" in points.all_text_contents()
    choose(opened, "tradeoff", "calibrator", "after temperature, fitted on clean validation images")
    scaled = 100 * statistics.fmean(mean.value("clean/ece") for mean in own)
    assert f"fgr: right {accuracy:.1f} %, ECE {scaled:.2f} %" in points.all_text_contents()


def test_the_best_point_is_at_the_bottom_right(opened: Opened) -> None:
    picture = opened.page.locator("#tradeoff svg").last
    names = opened.page.locator("#heat label").first.locator("option").all_inner_texts()
    places = picture.locator("circle").evaluate_all(
        "(all) => all.map((c) => [c.dataset.method, c.cx.baseVal.value, c.cy.baseVal.value])"
    )
    found = {names[int(method)]: (x, y) for method, x, y in places}
    assert found["fgr+views"][0] > found["fgr"][0] > found["ce"][0]
    assert found["fgr+views"][1] > found["fgr"][1] > found["ce"][1]


def test_without_severities_methods_stand_side_by_side(chromium: Any, tmp_path: Path) -> None:
    domains = ("sketch", "art_painting", "photo")
    values = {"ce": (0.2, 0.3, 0.1), "fgr": (0.15, 0.3, 0.12)}
    records = [held_out(m, 0, *one, 0.05) for m, own in values.items() for one in zip(domains, own, strict=True)]
    opened = Opened(chromium, write_report(tmp_path, records, "PACS"))
    heads, rows = (opened.page.locator(f"#heat {part} tr") for part in ("thead", "tbody"))
    assert heads.all_inner_texts() == ["test set\tce\tfgr"]
    assert [row.split() for row in rows.all_inner_texts()] == [
        ["clean", "5.00", "5.00"],
        ["sketch", "20.00", "15.00"],
        ["art", "painting", "30.00", "30.00"],
        ["photo", "10.00", "12.00"],
    ]
    cell = opened.page.locator('#heat button[aria-label="fgr, photo: ECE 12.00"]')
    cell.click()
    assert select(opened, "heat", "method").evaluate("(one) => one.options[one.selectedIndex].text") == "fgr"
    assert opened.page.locator('#heat button[aria-pressed="true"]').count() == 1
    assert cell.evaluate("(one) => one === document.activeElement"), "the keyboard's focus stays where it was"
    opened.page.keyboard.press("ArrowLeft")
    assert opened.page.locator("#heat button:focus").get_attribute("aria-label") == "ce, photo: ECE 10.00"
    choose(opened, "heat", "minus", "ce")
    assert rows.last.inner_text().split() == ["photo", "0.00", "+2.00"]
    assert "All methods minus ce" in opened.page.locator("#heat .note").inner_text()
    assert "Over the shifts: the median" in opened.page.locator("body").inner_text()
    assert opened.errors == []
    opened.page.context.close()


def test_a_seed_by_itself(opened: Opened, records: list[RunRecord]) -> None:
    choose(opened, "heat", "seed", "seed 1")
    [own] = [r for r in records if r.method == "ce" and r.seed == 1]
    [cell] = [c for c in own.evaluation.shifts if (c.shift, c.severity) == ("snow", 2)]
    shown = opened.page.locator('#heat button[aria-label^="snow 2:"]').inner_text()
    assert shown == f"{100 * cell.ece:.2f}"


def test_a_cell_opens_its_diagram_with_floor_and_bins(opened: Opened, records: list[RunRecord]) -> None:
    choose(opened, "heat", "seed", "seed 0")
    opened.page.locator('#heat button[aria-label^="fog 4:"]').click()
    assert opened.page.locator("#reliability figcaption").inner_text() == "ce, fog 4"
    [own] = [r for r in records if r.method == "ce" and r.seed == 0]
    [cell] = [c for c in own.evaluation.shifts if (c.shift, c.severity) == ("fog", 4)]
    titles = opened.page.locator("#reliability svg g title").all_text_contents()
    assert len(titles) == sum(n > 0 for n in cell.bins.count)
    last = f"{cell.bins.count[-1]} images say {100 * cell.bins.confidence[-1]:.1f} % and are right"
    assert titles[-1].startswith(last)
    text = opened.page.locator("#reliability figure .note").inner_text()
    assert f"ECE {100 * cell.ece:.1f} %" in text
    floor = float(text.split("chance alone gives ")[1].split(" %")[0])
    # A perfectly calibrated model with the confidences of these bins, by simulation.
    confidence = torch.tensor(cell.bins.confidence).repeat_interleave(torch.tensor(cell.bins.count)).double()
    p = torch.stack([confidence, 1 - confidence], 1).clamp(1e-9, 1)
    above = p.amax(1) == p[:, 0]
    assert above.float().mean() > 0.95, "of two classes the larger one is the confidence"
    assert floor == pytest.approx(100 * ece_noise_floor(p, bins=15), abs=0.1)


def test_arrow_keys_walk_the_map(opened: Opened) -> None:
    opened.page.locator('#heat button[aria-label^="fog 2:"]').click()
    opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("Enter")
    assert opened.page.locator("#reliability figcaption").inner_text() == "ce, brightness 3"


@pytest.mark.parametrize("column", [1, 2])
def test_tables_sort(opened: Opened, column: int) -> None:
    table = opened.page.locator("table.sortable").nth(1)

    def values() -> list[float]:
        return [float(t.split(" ")[0]) for t in table.locator(f"td:nth-child({column + 1})").all_inner_texts()]

    table.locator("th button").nth(column).click()
    assert values() == sorted(values(), reverse=column == 1), "accuracy begins with the highest"
    table.locator("th button").nth(column).click()
    assert values() == sorted(values(), reverse=column == 2)
    assert table.locator("th").nth(column).get_attribute("aria-sort") in ("ascending", "descending")
    explained = opened.page.locator(".explained").inner_text()
    assert explained.startswith({1: "Acc.: How often", 2: "ECE: Expected"}[column])


def test_the_legend_toggles_lines(opened: Opened) -> None:
    lines = opened.page.locator('#severity path[data-method="0"]')
    assert lines.count() == 16
    opened.page.locator('#severity .legend [data-method="0"]').click()
    assert lines.count() == 0
    assert opened.page.locator('#training path[data-method="0"]').count() == 0
    opened.page.locator('#risk .legend [data-method="0"]').click()
    assert lines.count() == 16


def test_one_scale_or_each_its_own(opened: Opened) -> None:
    last = "svg.querySelectorAll('text')[svg.querySelectorAll('.grid').length - 1].textContent"
    tops = f"(svgs) => svgs.map((svg) => {last})"
    shared = opened.page.locator("#severity svg[role=img]").evaluate_all(tops)
    assert len(set(shared)) == 1
    opened.page.locator("#severity input[type=checkbox]").uncheck()
    own = opened.page.locator("#severity svg[role=img]").evaluate_all(tops)
    assert len(set(own)) > 3


def test_risk_and_coverage_at_a_confidence(opened: Opened, records: list[RunRecord]) -> None:
    opened.page.locator("#risk input[type=range]").fill("0.95")
    histograms = [r.evaluation.clean.histogram for r in records if r.method == "fgr"]
    right = sum(sum(h.right[95:]) for h in histograms)
    kept = right + sum(sum(h.wrong[95:]) for h in histograms)
    total = sum(sum(h.right) + sum(h.wrong) for h in histograms)
    rows = [row.locator("td").all_inner_texts() for row in opened.page.locator("#risk tbody tr").all()]
    row = next(row for row in rows if row[0] == "fgr")
    assert row == ["fgr", f"{100 * kept / total:.1f} %", f"{100 * right / kept:.1f} %"]


def test_the_most_confident_mistake_comes_first(opened: Opened) -> None:
    shown = opened.page.locator("#gallery figcaption").all_inner_texts()
    assert shown == ["93.0 %: dog, but it is ship", "61.0 %: dog, but it is cat", "99.0 %: cat, right"]
    select(opened, "gallery", "images").select_option(label="ce, seed 0, fog 3")
    assert opened.page.locator("#gallery figcaption").all_inner_texts() == ["50.0 %: car, but it is ship"]


def test_what_differs_and_what_is_shared(opened: Opened) -> None:
    table = opened.page.locator("#details table").first
    assert "train.clip_norm" in table.locator("thead").inner_text()
    rows = {row.split("\t")[0]: row for row in table.locator("tbody").inner_text().split("\n")}
    assert "2.0" in rows["fgr-released, 3 runs"]
    assert "not set" in rows["ce, 3 runs"]


def test_the_data_can_be_taken_away(opened: Opened, records: list[RunRecord]) -> None:
    with opened.page.expect_download() as waiting:
        opened.page.get_by_role("button", name="Download CSV").click()
    rows = list(csv.DictReader(Path(waiting.value.path()).read_text().splitlines()))
    assert len(rows) == len(records) * 76 * 3
    [one] = [
        r
        for r in rows
        if (r["method"], r["seed"], r["set"], r["severity"], r["calibrator"]) == ("fgr", "2", "fog", "3", "none")
    ]
    [own] = [r for r in records if r.method == "fgr" and r.seed == 2]
    [cell] = [c for c in own.evaluation.shifts if (c.shift, c.severity) == ("fog", 3)]
    assert float(one["ece"]) == pytest.approx(cell.ece, rel=1e-4)
    assert int(one["n"]) == cell.n


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("kind", ["report", "audit"])
def test_it_is_accessible_and_fits(
    chromium: Any, report: Path, tmp_path: Path, kind: str, width: int, theme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    path = report if kind == "report" else write_audit_page(tmp_path, made())
    found = Opened(chromium, path, width, theme)
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
    shot = tmp_path / f"{kind}-{width}-{theme}.png"
    found.page.screenshot(path=shot, full_page=True)
    with Image.open(shot) as image:
        colours = {colour: n for n, colour in image.convert("RGB").getcolors(1 << 24)}
    paper, blue = (
        ((255, 255, 255), (0x48, 0x78, 0xA8)) if theme == "light" else ((0x14, 0x17, 0x1B), (0x5B, 0x8F, 0xC4))
    )
    assert max(colours, key=colours.__getitem__) == paper
    assert colours.get(blue, 0) > 1000, "a reliability diagram is drawn"
    violations = axe.Axe().run(found.page).response["violations"]
    serious = [(v["id"], v["nodes"][0]["html"][:200]) for v in violations if v["impact"] in ("serious", "critical")]
    assert serious == []
    assert found.errors == []
    assert found.elsewhere == []
    found.page.context.close()


HOSTILE = '</script><img src=x onerror="alert(1)"><script>alert(2)</script>'


def test_names_are_never_executed(chromium: Any, tmp_path: Path) -> None:
    shifts = [{**record("ce", 0, 0.1).evaluation.shifts[0].model_dump(), "shift": HOSTILE}]
    data = {"name": HOSTILE, "classes": [HOSTILE, "b"], "counts": {HOSTILE: 3}}
    config = {"data": {"name": HOSTILE}, "evaluation": {HOSTILE: HOSTILE}}
    hostile = [record(name, 0, 0.1, shifts=shifts, data=data, config=config) for name in ("ce", HOSTILE)]
    sample = Sample(shift=HOSTILE, true=HOSTILE, predicted=HOSTILE, confidence=0.5, right=False, png=png("red"))
    path = write_report(tmp_path, hostile, HOSTILE, {HOSTILE: HOSTILE}, galleries={key_of(config): [sample]})
    found = Opened(chromium, path)
    for control in found.page.locator("select").all():
        control.select_option(index=0)
    assert HOSTILE in found.page.locator("h1").inner_text()
    for head in ("tbody", "thead"):  # the shift, and without severities the method
        assert found.page.locator(f"#heat {head} th").filter(has_text="alert(1)").count() == 1
    assert found.dialogs == []
    assert found.elsewhere == []
    assert found.errors == []
    assert found.page.locator("img[onerror]").count() == 0


def test_what_is_not_there_has_no_section(chromium: Any, tmp_path: Path) -> None:
    none = {"shifted": None, "shifts": [], "reliability": {"clean": record("ce", 0, 0.1).evaluation.reliability.clean}}
    path = write_report(tmp_path, [record("ce", 0, 0.1, history=[], **none)], "t")
    found = Opened(chromium, path)
    assert found.page.locator("nav a").all_inner_texts() == ["Table", "Shifts", "Details"]
    for hidden in ("overview", "curves", "spread", "coverage", "classwise", "samples", "history"):
        assert not found.page.locator(f"#{hidden}").is_visible()
    assert found.errors == []


def test_an_audit_has_the_same_page(chromium: Any, tmp_path: Path) -> None:
    found = Opened(chromium, write_audit_page(tmp_path, made()))
    assert found.page.locator(".verdict").inner_text() == "Right 90.0 % of the time, says 95.0 %."
    assert found.page.locator(".numbers b").all_inner_texts() == ["5.0 %", "20.0 %"]
    found.page.locator('#heat button[aria-label^="fog 2:"]').click()
    text = found.page.locator("#reliability figure .note").inner_text()
    assert text == "ECE 20.0 % (19.0 % to 21.0 %); chance alone gives 1.0 % on 1000 images."
    choose(found, "heat", "calibrator", "after temperature, fitted on validation images")
    assert found.page.locator('#heat button[aria-label^="fog 2:"]').inner_text() == "10.00"
    assert found.errors == []


def test_several_audits_side_by_side(chromium: Any, tmp_path: Path) -> None:
    other = made(model={"name": "other.onnx", "kind": "onnx"})
    for name, audit in (("a", made()), ("b", other), ("c", made())):
        (tmp_path / name).mkdir()
        write_audit(tmp_path / name / AUDIT, audit)
    done = CliRunner().invoke(app, ["report", *(str(tmp_path / n) for n in "abc"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    found = Opened(chromium, tmp_path / "out" / "report.html")
    options = select(found, "heat", "method").locator("option").all_inner_texts()
    assert options == ["model.onnx (1)", "other.onnx", "model.onnx (3)"]
    assert found.errors == []
