"""Runs that differ in anything: their names, and the settings whose runs one table compares."""

import json
from pathlib import Path
from typing import Any

import pytest
from made_records import BINS, metrics, plain, record
from typer.testing import CliRunner

from shiftcal.cli import app
from shiftcal.records import Kept, RunRecord
from shiftcal.report.figures.compared import differing_keys
from shiftcal.report.formats import by_shift, by_shift_latex, latex, values
from shiftcal.report.labels import base_of, labelled, methods_of, order_of, settings_of
from shiftcal.report.paired import differences
from shiftcal.report.table import check_comparable, markdown, rows_of, tables_of
from shiftcal.report.tables import write_tables


def run(method: str, seed: int = 0, ece: float = 0.1, recipe: str = "demo", **keys: Any) -> RunRecord:
    """A record whose config has some dotted keys, with two underscores for the dot."""
    config: dict[str, Any] = {"method": method, "seed": seed, "data": {"name": "shapes"}, "evaluation": {"bins": 15}}
    config["train"] = {"model": "small", "epochs": 4}
    for key, value in keys.items():
        section, _, name = key.partition("__")
        config.setdefault(section, {})[name] = value
    return record(method, seed, ece, config=config, recipe=recipe)


def names(*records: RunRecord) -> list[str]:
    return [found.method for found in labelled(records)]


def test_what_varies_within_a_method_is_named() -> None:
    found = names(run("ce"), run("fgr", filter__ratio=0.03), run("fgr", filter__ratio=0.1))
    assert found == ["ce", "fgr, filter.ratio 0.03", "fgr, filter.ratio 0.1"]
    assert names(run("fgr", filter__ratio=0.03), run("fgr", 1, filter__ratio=0.03)) == ["fgr", "fgr"], "seeds are alike"
    assert names(run("ce", filter__ratio=0.1), run("fgr", filter__ratio=0.03)) == ["ce", "fgr"], "so are other methods"


def test_only_keys_that_tell_more_are_named() -> None:
    swept = [run("fgr", filter__ratio=r, gamma__fgr=g) for r in (0.03, 0.1) for g in (1, 3.0)]
    assert names(*swept)[1] == "fgr, filter.ratio 0.03, gamma.fgr 3"
    assert names(*[run("fgr", filter__ratio=r, gamma__fgr=10 * r) for r in (0.1, 0.3)])[0] == "fgr, filter.ratio 0.1"
    far = [run("fgr", data__name=n, data__size=s, train__epochs=s) for n, s in (("cifar10", 32), ("tiny", 64))]
    assert names(*far) == ["fgr, cifar10", "fgr, tiny"]
    assert names(*far, run("fgr", data__name="tiny", data__size=64, train__epochs=64, train__model="r50"))[-2:] == [
        "fgr, tiny, small",
        "fgr, tiny, r50",
    ]
    assert names(run("fgr", recipe="paper-x", train__epochs=9), run("fgr", recipe="released-x")) == [
        "fgr, paper-x",
        "fgr, released-x",
    ]


@pytest.mark.parametrize(
    ("method", "unused", "own"),
    [
        ("ce", ["gamma__dfl", "gamma__runner_up", "filter__ratio", "constraint__weight", "perturb__severity"], None),
        ("ce", ["finetune__views", "train__start"], None),
        ("dfl", ["gamma__fgr", "gamma__perturbed", "filter__ratio"], "gamma__dfl"),
        ("fgr", ["gamma__perturbed", "perturb__severity", "constraint__weight", "filter__radii"], "train__start"),
        ("weighted-sum", ["finetune__views"], "constraint__weight"),
        ("filter-only", ["constraint__weight"], "filter__ratio"),
        ("dfl+views", ["filter__ratio", "gamma__fgr"], "gamma__perturbed"),
    ],
)
def test_what_a_method_does_not_use_tells_nothing(method: str, unused: list[str], own: str | None) -> None:
    for key in unused:
        runs = [run(method, **{key: 1}), run(method, 1, **{key: 2})]
        assert names(*runs) == [method] * 2, key
        check_comparable(runs)
        alike = names(run(method, **{key: 1}), run(method, **{key: 2}))
        assert alike == [f"{method}, {key.replace('__', '.')} {value}" for value in (1, 2)], "told apart all the same"
        other = [run(f"{method}-finetuned", k, **{key: k}) for k in (1, 2)]
        assert len(set(names(*other))) == 2, "a tuned classifier may depend on it"
    if own is not None:
        assert len(set(names(run(method, **{own: 1}), run(method, 1, **{own: 2})))) == 2
        with pytest.raises(ValueError, match=own.replace("__", ".")):
            check_comparable([run(method, **{own: 1}), run(method, 1, **{own: 2})])


def test_strengths_of_the_filter_that_is_used_tell() -> None:
    spectral = {"filter__filter": "fft"}
    assert len(set(names(*[run("fgr", k, filter__radii=[k], **spectral) for k in (0, 1)]))) == 2
    assert names(*[run("fgr", k, filter__qualities=[k], **spectral) for k in (0, 1)]) == ["fgr"] * 2


def test_domains_held_out_in_turn_are_not_alike() -> None:
    assert names(*[run("ce", data__holdout=d, gamma__dfl=v) for d, v in (("a", 1), ("b", 2))]) == ["ce", "ce"]


@pytest.mark.parametrize("chosen", ["median", ["fft"], 3])
def test_a_filter_that_does_not_exist_leaves_the_rows(chosen: Any) -> None:
    found = names(*[run("fgr", k, filter__filter=chosen, filter__qualities=[k]) for k in (0, 1)])
    assert found == ["fgr, filter.qualities [0]", "fgr, filter.qualities [1]"]


def test_keys_that_a_method_does_not_use_are_no_sweep() -> None:
    assert differing_keys([run("ce", gamma__dfl=k, train__weight_decay=k / 10) for k in (1, 2)]) == {
        "train.weight_decay"
    }


def test_runs_that_are_alike_but_for_what_is_not_used_keep_the_rows_clipping() -> None:
    released = [run("fgr-released", 0, train__clip_norm=2.0, gamma__dfl=1), run("fgr-released", 1, gamma__dfl=1)]
    released.append(run("fgr-released", 0, train__clip_norm=2.0, gamma__dfl=2))
    assert names(*released) == [f"fgr-released, gamma.dfl {k}" for k in (1, 1, 2)]


FREE = ["data__holdout", "engine__compile", "evaluation__also", "evaluation__every", "evaluation__validate_every"]


@pytest.mark.parametrize("key", FREE)
def test_what_a_mean_may_be_over_tells_nothing(key: str) -> None:
    assert names(run("fgr", **{key: "a"}), run("fgr", 1, **{key: "b"})) == ["fgr", "fgr"]


def test_what_is_not_set_is_as_if_it_were_not_there() -> None:
    assert names(run("fgr", filter__filter=None), run("fgr", 1)) == ["fgr", "fgr"]
    assert names(run("fgr", train__milestones=[]), run("fgr", 1)) == ["fgr", "fgr"]
    check_comparable([run("fgr", train__milestones=[]), run("fgr", 1)])
    assert names(run("fgr", train__nesterov=False), run("fgr", 1)) != ["fgr", "fgr"], "false is a value"
    assert names(run("fgr-released", train__clip_norm=2.0), run("fgr-released", 1)) == ["fgr-released"] * 2, "the row's"
    assert names(run("ls", train__smoothing=0.05), run("ls", 1), run("ls", 2, train__smoothing=None)) == ["ls"] * 3
    views = [run("ls+views"), run("ls+views", 1, perturb__amplitude=0.1), run("ls+views", perturb__amplitude=0.2)]
    assert names(*views) == [f"ls+views, perturb.amplitude {share}" for share in (0.1, 0.1, 0.2)]
    assert names(run("fgr", filter__filter="fft"), run("fgr")) == [
        "fgr, filter.filter fft",
        "fgr, filter.filter not set",
    ]
    kept = [run("fgr", train__keep="last"), run("fgr", 1)]
    assert names(*kept) == ["fgr", "fgr"], "the row keeps the last weights by itself"
    check_comparable(kept)
    average = run("fgr", 1).model_copy(update={"weights": Kept(kept="average")})
    assert names(run("fgr"), average) == ["fgr, train.keep last", "fgr, train.keep average"]
    listed = names(run("fgr", filter__qualities=[15, 18]), run("fgr", filter__qualities=[25], train__nesterov=True))
    assert listed == ["fgr, filter.qualities [15, 18]", "fgr, filter.qualities [25]"]


def test_labels_are_stable() -> None:
    made = [run("fgr", s, filter__ratio=r, data__name=d) for s in (0, 1) for r in (0.1, 0.03) for d in ("b", "a")]
    once = labelled(made)
    assert labelled(once) == once
    backwards = {id(a): b.method for a, b in zip(made[::-1], labelled(made[::-1]), strict=True)}
    assert [backwards[id(one)] for one in made] == [one.method for one in once]
    assert {one.method for one in made} == {"fgr"}, "the records that were given stay as they are"
    assert labelled([]) == []


def test_labels_are_in_the_order_of_methods_and_numbers() -> None:
    shuffled = ["mine", "fgr, x 10", "fgr, x 9.5", "dfl", "fgr, x 1e-05", "fgr", "ce, x 3"]
    assert sorted(shuffled, key=order_of) == [
        "ce, x 3",
        "dfl",
        "fgr",
        "fgr, x 1e-05",
        "fgr, x 9.5",
        "fgr, x 10",
        "mine",
    ]
    assert base_of("fgr, x 10") == "fgr"
    assert methods_of(labelled([run("fgr", gamma__fgr=g) for g in (10, 9)])) == [
        "fgr, gamma.fgr 9",
        "fgr, gamma.fgr 10",
    ]


def test_each_data_set_and_network_is_a_setting() -> None:
    made = [run(m, data__name=d, train__model=n) for d in ("b", "a") for n in ("r50", "r18") for m in ("ce", "fgr")]
    settings = settings_of(made)
    assert [setting.title for setting in settings] == ["a, r18", "a, r50", "b, r18", "b, r50"]
    assert all([r.method for r in setting.records] == ["ce", "fgr"] for setting in settings)
    text = markdown(made)
    assert "| a, r18: In distribution | Acc." in text
    assert text.count("| fgr |") == 8
    tex = latex(made)
    assert tex.count(r"\begin{tabular}") == 1
    assert "b, r50: Mean over shifts &" in tex
    assert "| a, r18: ECE in % | ce | fgr |" in by_shift(made)
    assert "a, r18: ECE in \\% & ce & fgr" in by_shift_latex(made)
    assert values(made).splitlines()[1].startswith('"ce, b, r50",b,r50,0,')
    assert settings_of(made[:2])[0].title == ""


def test_bins_and_severities_that_differ_are_listed_apart() -> None:
    shorter = {"count": [4, 6], "confidence": [0.6, 0.9], "accuracy": [0.5, 1.0]}
    made = [run("ce"), record("fgr", 0, 0.1, config=run("fgr").config, reliability={"clean": shorter, "shifted": BINS})]
    with pytest.raises(ValueError, match="with the same bins"):
        rows_of(made)
    assert len(settings_of(made)) == 2
    assert [setting.title for setting in settings_of(made)] == ["(1)", "(2)"]
    other = [{"shift": "fog", "severity": 1, **metrics(0.1)}]
    made[1] = record("fgr", 0, 0.1, config=run("fgr").config, shifts=other)
    assert len(settings_of(made)) == 2
    markdown(made)


def test_domains_held_out_have_tables_of_their_own_and_a_mean_over_the_same() -> None:
    def held(method: str, domain: str, ece: float, seed: int = 0) -> RunRecord:
        return run(method, seed, ece, data__holdout=domain)

    made = [held(m, d, e) for m in ("ce", "fgr") for d, e in (("art", 0.1), ("sketch", 0.3))]
    assert [table.title for table in tables_of(made)][1:] == ["Mean over shifts", "Held out: art", "Held out: sketch"]
    text = markdown(made)
    assert text.partition("| Held out: sketch")[2].count(" 30.00 |") == 8, "ECE, w/ TS, CECE and ACE of two methods"
    some = settings_of(made[:3])
    assert [(s.title, len(s.records)) for s in some] == [("held out art", 1), ("held out art, sketch", 2)]


def test_differences_are_those_of_one_setting() -> None:
    made = [run(m, s, e, data__name=d) for d in "ab" for m, e in (("ce", 0.2), ("fgr", 0.1)) for s in (0, 1)]
    assert next(iter(differences(made, "ce"))) == "a: In distribution: difference to ce"
    swept = [run("fgr", filter__ratio=r) for r in (0.03, 0.1)]
    with pytest.raises(ValueError, match=r"`against` should be one of fgr, filter.ratio 0.03, fgr, filter.ratio 0.1"):
        differences(swept, "fgr")
    [table, *_] = differences(swept, "fgr, filter.ratio 0.1").values()
    assert table[0][0] == "fgr, filter.ratio 0.03 (1 seed)"


HOSTILE: list[dict[str, Any]] = [
    {"data": {"name": ["x"], "holdout": {"a": 1}}},
    {"data": {"name": 7, "size": 1e300}},
    {"data": {}, "evaluation": {}, "train": "none", "filter": [1, {"a": None}]},
    {"data": {"name": "\x1b[2J|\\input{x}\n<b>"}, "": {"": ""}, "a.b": {"c.d": "99999999999999999999e999"}},
]


@pytest.mark.parametrize("config", HOSTILE)
def test_forged_configs_are_text(config: dict[str, Any], tmp_path: Path) -> None:
    made = [run("fgr"), run("fgr", 1), record("fgr", 0, 0.1, config={"evaluation": {"bins": 15}} | config)]
    once = labelled(made)
    assert labelled(once) == once
    write_tables(tmp_path, made)
    for path in tmp_path.iterdir():
        text = path.read_text()
        assert "\x1b" not in text
        assert path.suffix != ".tex" or r"\input{" not in text


def report(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["report", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


def write(place: Path, *trees: dict[str, Any] | str) -> Path:
    for number, tree in enumerate(trees):
        (place / f"run-{number}").mkdir(parents=True)
        text = tree if isinstance(tree, str) else json.dumps(tree)
        (place / f"run-{number}" / "record.json").write_text(text)
    return place


def of(method: str, data: str, **changes: Any) -> dict[str, Any]:
    return plain(method, 0, 0.1) | {"config": {"data": {"name": data}, "evaluation": {"bins": 15}}} | changes


def test_a_report_of_several_directories(tmp_path: Path) -> None:
    a = write(tmp_path / "a", of("ce", "x"), of("fgr", "x"))
    b = write(tmp_path / "b", of("ce", "y"))
    (tmp_path / "c.jsonl").write_text(json.dumps(of("ce", "z")) + "\n")
    code, _, stderr = report(a, b)
    assert (code, "`out` should be given for the report of several directories" in stderr) == (2, True)
    code, stdout, stderr = report(a, b, tmp_path / "c.jsonl", "--out", tmp_path / "all")
    assert code == 0, stderr
    assert all(f"| {name}: ce |" in stdout for name in "xyz"), "one table has all settings"
    assert "| x: In distribution |" in stdout, "and where methods are compared there is one of its own"
    assert "| y: In distribution |" not in stdout
    assert (tmp_path / "all" / "report.html").is_file()
    assert not (a / "report.html").exists()
    code, _, stderr = report(a, a, "--out", tmp_path / "twice")
    assert code == 0, stderr
    assert (tmp_path / "twice" / "report.html").read_text().count("given twice") == 2, "no run counts twice"


@pytest.mark.filterwarnings("ignore:Left out")
def test_what_several_directories_leave_out_is_named(tmp_path: Path) -> None:
    nan = json.dumps(of("fgr", "x")).replace('"loss": 0.5', '"loss": NaN')
    huge = json.dumps(of("fgr", "x")).replace('"loss": 0.5', '"loss": 1e999')
    lacking = {key: value for key, value in of("fgr", "x").items() if key != "evaluation"}
    a = write(tmp_path / "a", of("ce", "x"), nan, huge)
    b = write(tmp_path / "b", of("ce", "y"), lacking, of("fgr", "y", seed="zero"))
    code, _, stderr = report(a, b, "--out", tmp_path / "out")
    assert code == 0, stderr
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(f"{place / f'run-{number}'}" in page for place in (a, b) for number in (1, 2))
    for empty in (write(tmp_path / "c", "{"), tmp_path / "d"):
        (tmp_path / "d").mkdir(exist_ok=True)
        code, _, stderr = report(a, empty, "--out", tmp_path / f"beside-{empty.name}")
        assert code == 0, stderr
        assert str(empty) in (tmp_path / f"beside-{empty.name}" / "report.html").read_text(), "named and left out"
    code, _, stderr = report(tmp_path / "c", tmp_path / "d", "--out", tmp_path / "none")
    assert (code, str(tmp_path / "d") in stderr) == (2, True), "nothing is left"
    assert not (tmp_path / "none").exists()


def test_another_folder_in_the_same_place_is_another_setting() -> None:
    """Runs of two seeds, whose folder was replaced between them."""
    one, other = ("cat", "dog"), ("cat", "dog", "mouse")
    clean = metrics(0.1)
    records = [
        record(
            "ce", seed, 0.2, clean=clean | {"n": n}, data={"name": "folder", "classes": classes, "counts": {"test": n}}
        )
        for seed, (n, classes) in enumerate(((60, one), (90, one), (60, other), (60, one)))
    ]
    assert sorted(len(setting.records) for setting in settings_of(records)) == [1, 1, 2]
