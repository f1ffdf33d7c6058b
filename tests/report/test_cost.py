import re
from pathlib import Path
from typing import Any

import pytest
from made_records import record

from shiftcal.records import RunRecord
from shiftcal.report.cost import markdown
from shiftcal.report.tables import write_tables


def run(method: str, seed: int, epochs: list[float], device: str = "a GPU", **changes: Any) -> RunRecord:
    common = {"loss": 1.0, "accuracy": 0.1}
    history = [
        {"epoch": number, "seconds": own, "images_per_second": 100 / own, **common}
        for number, own in enumerate(epochs, start=1)
    ]
    total = {"seconds": {"train": sum(epochs), "evaluate": 2.0}}
    return record(method, seed, 0.1, **{"history": history, "device": {"name": device}} | total | changes)


def test_medians_without_the_first_epoch_and_ratios_by_seed(tmp_path: Path) -> None:
    made = [run("ce", 0, [9.0, 1.0, 1.0]), run("ce", 1, [9.0, 2.0, 2.0])]
    made += [run("fgr", 0, [9.0, 1.0, 12.0]), run("fgr", 1, [10.0, 4.0, 12.0])]
    text = markdown(made)
    assert "| Cost | s an epoch | s in all | × ce | images/s | device |" in text
    assert "| ce | 1.5 ± 0.707 | 14 ± 1.41 | 1 ± 0 | 75 ± 35.4 | a GPU |" in text
    assert "| fgr | 7.25 ± 1.06 | 26 ± 2.83 | 2 ± 0 |" in text
    write_tables(tmp_path, made)
    assert (tmp_path / "cost.md").read_text() == text
    assert (tmp_path / "table.md").read_text().endswith(text)


def test_other_devices_and_seeds_are_not_compared() -> None:
    made = [run("ce", 0, [1.0]), run("fgr", 0, [2.0], "another"), run("dfl", 1, [2.0])]
    rows = dict(re.findall(r"\| (\w+) \| [^|]* \| [^|]* \| ([^|]*) \|", markdown(made)))
    assert (rows["ce"], rows["fgr"], rows["dfl"]) == ("1", "–", "–")


@pytest.mark.parametrize("changes", [{"history": []}, {"seconds": {}}, {"device": {}}, {"device": {"threads": "[x|"}}])
def test_what_a_record_lacks_is_a_dash(changes: dict[str, Any]) -> None:
    text = markdown([run("ce", 0, [1.0], **changes), run("fgr", 0, [1e10, 1e-300])])
    rows = [line.replace(r"\|", "") for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7}
