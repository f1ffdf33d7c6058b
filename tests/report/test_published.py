"""The paper's numbers, and ours beside them."""

import pytest
from made_records import metrics, record

from shiftcal.experiments.recipes import recipe_names
from shiftcal.methods import METHODS
from shiftcal.records import RunRecord
from shiftcal.report.published import beside, latex, markdown, published
from shiftcal.report.table import WIDE
from shiftcal.report.tables import all_tables


def printed(number: int, recipe: str, part: str, method: str) -> list[str]:
    [table] = [t for t in published() if (t["number"], t["recipe"], t["part"]) == (number, recipe, part)]
    return list(table["methods"][method])


@pytest.mark.parametrize(
    ("number", "recipe", "part", "method", "values"),
    [
        (1, "paper-cifar10-densenet121", "shifted", "ce", "74.05 23.51 17.16 4.87 4.38"),
        (1, "paper-cifar100-densenet121", "shifted", "fgr", "52.66 8.53 7.57 0.47 0.46"),
        (1, "paper-tiny-imagenet-densenet121", "shifted", "flsd53", "22.30 15.35 47.58 0.41 0.42"),
        (1, "paper-camelyon17-densenet121", "shifted", "fgr", "89.19 2.36 1.82 5.714 5.691"),
        (1, "paper-iwildcam-resnet50", "shifted", "bsce-gra", "75.19 5.02 3.74 0.150 0.156"),
        (1, "paper-fmow-densenet121", "shifted", "augmix", "27.47 48.68 3.08 1.86 1.77"),
        (2, "paper-office-home-resnet50", "clean", "ce", "63.22 18.63 3.12 0.858 0.527"),
        (2, "paper-office-home-resnet50", "shifted", "fgr", "34.03 20.41 13.93 1.018 0.971"),
        (3, "paper-cifar10-resnet50", "clean", "fgr", "94.97 0.65"),
        (3, "paper-cifar100-resnet50", "shifted", "filter-only", "51.12 9.70"),
        (3, "paper-tiny-imagenet-resnet50", "shifted", "weighted-sum", "22.64 17.26"),
        (4, "paper-camelyon17-densenet121", "shifted", "pcgrad", "88.68 3.38 0.2909"),
        (4, "paper-iwildcam-resnet50", "val", "fgr", "63.61 8.19"),
        (5, "transformer-cifar100-swin-tiny", "shifted", "dfl", "63.73 9.54"),
        (5, "transformer-camelyon17-deit-small", "val", "fgr", "85.57 5.06"),
        (11, "paper-cifar10-resnet50", "clean", "fgr-finetuned", "95.06 0.58"),
        (12, "paper-cifar100-resnet50", "shifted", "fgr-finetuned", "51.33 9.94"),
        (13, "paper-tiny-imagenet-resnet50", "shifted", "bsce-gra", "22.95 20.42 47.77 0.45 0.63"),
        (14, "paper-cifar100-wrn26-10", "clean", "dfl", "2.77 1.64"),
        (14, "paper-tiny-imagenet-densenet121", "clean", "ce", "8.26 15.01"),
        (15, "paper-cifar100-resnet50", "clean", "fgr-brier", "77.90 3.02 2.63 0.194 0.176"),
        (16, "paper-cifar10-resnet50", "shifted", "fgr-avuc", "75.13 6.47 7.22 2.971 2.684"),
    ],
)
def test_cells_are_those_that_the_paper_prints(number: int, recipe: str, part: str, method: str, values: str) -> None:
    assert printed(number, recipe, part, method) == values.split()


def test_every_table_belongs_to_a_recipe_and_to_methods_of_ours() -> None:
    keys = {column[1] for column in WIDE}
    for table in published():
        assert table["recipe"] in recipe_names()
        assert {name.removesuffix("-finetuned") for name in table["methods"]} <= METHODS.keys()
        assert set(table["columns"]) <= keys
        assert all(len(row) == len(table["columns"]) for row in table["methods"].values())
        assert all(0 < float(number) < 100 for row in table["methods"].values() for number in row)


@pytest.fixture
def records() -> list[RunRecord]:
    recipe = {"recipe": "paper-cifar10-densenet121"}
    return [record(name, 0, 0.1, **recipe) for name in ("ce", "fgr", "fgr-shared")]


def test_ours_are_beside_the_papers(records: list[RunRecord]) -> None:
    titles = [table.title for table in beside(records)]
    assert titles == [
        "Mean over shifts, beside the paper's Table 1",
        "In distribution, beside the paper's Table 14",
    ]
    text = markdown(records)
    assert "| ce | 90.00 | 74.05 | 10.00 | 23.51 | 10.00 | 17.16 | 10.00 | 4.87 | 10.00 | 4.38 |" in text
    assert "fgr-shared" not in text
    assert text in all_tables(records)
    assert r"fgr & 90.00 & 75.12 & 10.00 & 9.02" in latex(records)


def test_ours_have_the_papers_decimals() -> None:
    made = record("fgr", 0, 0.1, recipe="paper-camelyon17-densenet121", other_tests={"val": metrics(0.2)})
    text = markdown([made])
    assert "| 10.000 | 5.714 |" in text
    assert "| Also: val, beside the paper's Table 4 |" in text
    assert "| fgr | 90.00 | 90.90 | 20.00 | 0.92 |" in text


def test_other_recipes_have_none(records: list[RunRecord]) -> None:
    assert markdown([record("ce", 0, 0.1)]) == ""
    assert latex([record("ce", 0, 0.1)]) == ""
    assert markdown([*records, record("dfl", 0, 0.1)]) == "", "nor has a table of runs by several"


def test_runs_that_change_the_recipe_are_marked() -> None:
    def run(**train: object) -> RunRecord:
        config = {"data": {"name": "cifar10"}, "evaluation": {"bins": 15}, "train": train}
        return record("fgr", 0, 0.1, recipe="paper-cifar10-resnet50", config=config)

    assert beside([run(epochs=350)])[0].rows[0][0] == "fgr"
    assert beside([run(epochs=1)])[0].rows[0][0] == "fgr *"
    assert beside([run(epochs=350, track=["wandb"])])[0].rows[0][0] == "fgr"
