"""What --seeds, --sweep and --select say, and the names of directories."""

import pytest

from shiftcal.experiments.config import Config, load_config
from shiftcal.experiments.study import Study
from shiftcal.experiments.sweep import keys_in, run_name, seeds_of, swept_keys, uses, values_of


def test_seeds_and_ranges_of_them() -> None:
    assert seeds_of("0-2") == [0, 1, 2]
    assert seeds_of(" 3, 1,5-7,6,") == [3, 1, 5, 6, 7]


@pytest.mark.parametrize(
    "text", ["", ",", "a", "1-", "-1", "3-1", "0-5000", "1.5", "²", "0-99999999999", "1--2", "1 2"]
)
def test_what_is_no_seed(text: str) -> None:
    with pytest.raises(ValueError, match="`seeds` should be whole numbers and ranges"):
        seeds_of(text)


def test_commas_in_brackets_and_quotes_do_not_separate() -> None:
    assert values_of("sweep", "[15],[18, 25]") == ["[15]", "[18, 25]"]
    assert values_of("sweep", "'a,b',\"c]\",{x=[1,2]}, d ,d") == ["'a,b'", '"c]"', "{x=[1,2]}", "d"]
    for text in ("[1,2", "1]", "'a", "[']"):
        with pytest.raises(ValueError, match="`sweep` should be with brackets and quotes that are closed"):
            values_of("sweep", text)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("filter.ration=1", r"over a key of the configuration.*Did you mean 'filter.ratio'\?"),
        ("filter=1", "over a key of the configuration"),
        ("seed=1,2", "another key than seed, which --seeds takes"),
        ("method=ce", "another key than method, which --methods takes"),
        ("recipe=demo", "another key than recipe, which RECIPE takes"),
        ("gamma.fgr=", "of the form KEY=VALUE"),
        ("gamma.fgr=,", "of the form KEY=VALUE"),
        ("gamma.fgr", "of the form KEY=VALUE"),
        ("", "over a key of the configuration"),
        ("engine.compile=on,off", "changes results, not speed"),
        ("train.epochs=1,2", "train.epochs is set twice"),
        ("train.batch_size=1,2", "train.batch_size is set twice"),
    ],
)
def test_what_cannot_be_swept(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        swept_keys("sweep", [word], ["train.epochs", "train"] if "batch" in word else ["train.epochs"])
    with pytest.raises(ValueError, match="set twice"):
        swept_keys("sweep", ["gamma.fgr=1", "gamma.fgr=2"])


def test_names_hold_the_values_safely() -> None:
    config = load_config("demo", ["filter.ratio=0.03", "gamma.fgr=1", "filter.qualities=[18, 25]"]).to_dict()
    assert run_name(config) == "fgr-0"
    assert run_name(config, ["gamma.fgr", "filter.ratio"]) == "fgr-filter.ratio=0.03-gamma.fgr=1-0"
    assert run_name(config, ["filter.qualities"]) == "fgr-filter.qualities=18+25-0"
    assert keys_in("fgr-filter.ratio=0.03-gamma.fgr=1-0") == {"filter.ratio", "gamma.fgr"}
    names = set()
    for text in ("/a/b", "/a_b", "../..", "", "x" * 4000, "x" * 3999, "a\nb", "ü", "a-0"):
        config["train"]["weights"] = text
        name = run_name(config, ["train.weights", "filter.ratio"])
        assert len(name.encode()) < 200
        assert "/" not in name
        assert name.isascii()
        assert name.isprintable()
        names.add(name)
    assert len(names) == 9


def used(method: str, *words: str) -> set[str]:
    keys = ("filter.ratio", "filter.radii", "filter.qualities", "gamma.fgr", "gamma.dfl", "constraint.weight")
    keys += ("constraint.scope", "perturb.severity", "finetune.epochs", "train.epochs", "gamma.runner_up")
    config = of(method, *words)
    return {key for key in keys if uses(config, key)}


def of(method: str, *words: str) -> Config:
    return load_config("demo", [f"method={method}", *words])


def test_a_row_says_which_keys_it_uses() -> None:
    assert used("ce") == {"train.epochs"}
    assert used("dfl") == {"train.epochs", "gamma.dfl", "gamma.runner_up"}
    assert used("fgr") == {
        *("train.epochs", "filter.ratio", "filter.qualities", "gamma.fgr", "gamma.runner_up", "constraint.scope")
    }
    assert "constraint.weight" in used("weighted-sum")
    assert {"filter.radii"} == used("fgr", "filter.filter=fft") - used("fgr")
    assert "perturb.severity" in used("dfl+views")
    assert "gamma.runner_up" not in used("bsce-gra")
    started = {name for name in ("ce", "dfl+views", "filter-only", "rect-only") if uses(of(name), "train.start")}
    assert started == {"filter-only", "rect-only"}
    assert {name for name in ("ce", "ls", "ls+views", "dfl+views") if uses(of(name), "train.smoothing")} == {
        *("ls", "ls+views")
    }
    tuned = of("ce").model_copy(update={"finetuned_from": "runs/ce"})
    assert uses(tuned, "filter.ratio"), "fine-tuning may depend on any key"


def test_a_key_that_a_method_does_not_use_makes_no_further_run() -> None:
    study = Study(
        "demo", ["ce", "fgr"], [0, 1], (), {"filter.ratio": ["0.03", "0.1", "0.10"]}, {"gamma.fgr": ["1", "3"]}
    )
    names = list(study.runs([0]))
    assert names == [
        "ce-0",
        "fgr-filter.ratio=0.03-gamma.fgr=1-0",
        "fgr-filter.ratio=0.03-gamma.fgr=3-0",
        "fgr-filter.ratio=0.1-gamma.fgr=1-0",
        "fgr-filter.ratio=0.1-gamma.fgr=3-0",
    ]
    assert len(study.runs()) == 2 * len(names)
    with pytest.raises(ValueError, match=r"`by` should be one of .*Did you mean 'validation.ece'"):
        Study("demo", ["ce"], [0], by="validation.eec")
    with pytest.raises(ValueError, match=r"`by` should be one of validation\."):
        Study("demo", ["ce"], [0], by="clean.ece")


@pytest.mark.parametrize(
    ("word", "option"), [("seed=1", "--seeds"), ("method = fgr", "--methods"), ("recipe=x", "RECIPE")]
)
def test_what_a_grid_varies_cannot_be_set(word: str, option: str) -> None:
    with pytest.raises(ValueError, match=rf"`set` should be of another key than \w+, which {option} takes"):
        Study("demo", ["ce"], [0], ["train.epochs=1", word])
