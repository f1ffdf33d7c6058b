import csv
import io
import shutil
import subprocess
from pathlib import Path

import pytest
from made_records import metrics, record

from shiftcal.records import RunRecord
from shiftcal.report.formats import by_shift, by_shift_latex, latex, values
from shiftcal.report.text import for_latex


@pytest.fixture
def records() -> list[RunRecord]:
    return [record("fgr", 0, 0.05), record("ce", 0, 0.2), record("ce", 1, 0.3), record("fgr", 1, 0.07)]


def test_latex_is_a_table_of_booktabs(records: list[RunRecord]) -> None:
    text = latex(records)
    assert text.startswith("\\begin{tabular}{lrrrrrr}\n\\toprule\n")
    assert r"& 6.00 $\pm$ 1.41 &" in text, "two seeds this far apart carry nothing in bold"
    close = [record(name, seed, ece + seed / 10) for name, ece in (("ce", 0.2), ("fgr", 0.1)) for seed in (0, 1)]
    assert r"fgr & 90.00 $\pm$ 0.00 & \textbf{15.00 $\pm$ 7.07} &" in latex(close)
    assert r"ce & " in text
    assert text.count(r" \\") == 6, "two heads and two rows in each part"
    assert "w/ TS" in text


def test_what_a_file_supplies_is_text_in_latex(records: list[RunRecord]) -> None:
    evil = record(r"\input{/etc/passwd} & $x_1$ %", 0, 0.1)
    text = latex([*records, evil])
    assert r"\textbackslash{}input\{/etc/passwd\} \& \$x\_1\$ \%" in text
    assert r"\input{" not in text
    assert for_latex("a\nb~c^d#{}") == r"a b\textasciitilde{}c\textasciicircum{}d\#\{\}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_compiles(records: list[RunRecord], tmp_path: Path) -> None:
    body = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}" + latex(records) + "\\end{document}"
    (tmp_path / "t.tex").write_text(body)
    subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_every_number_is_in_the_csv(records: list[RunRecord]) -> None:
    rows = list(csv.DictReader(io.StringIO(values(records))))
    assert len(rows) == 4 * (2 + 4), "validation, clean, and four shifted sets a run"
    [one] = [r for r in rows if (r["method"], r["seed"], r["set"], r["severity"]) == ("ce", "1", "snow", "2")]
    assert float(one["ece"]) == pytest.approx(0.6)
    assert float(one["clean/ece"]) == pytest.approx(0.6)
    assert one["shift_aware/ece"] == ""
    assert {r["weights"] for r in rows} == {"last"}


def test_errors_by_shift(records: list[RunRecord]) -> None:
    text = by_shift(records)
    assert text.splitlines()[0] == "| ECE in % | ce | fgr |"
    assert "| fog | 37.5 ± 10.6 | 9.0 ± 2.1 |" in text  # severities 1 and 2 of 0.2 and 0.3, of 0.05 and 0.07
    few = record("dfl", 0, 0.1, shifts=[{"shift": "fog", "severity": 1, **metrics(0.1)}])
    other = record("ce", 0, 0.1, shifts=[{"shift": "snow", "severity": 1, **metrics(0.1)}])
    assert "| fog | – | 10.0 |" in by_shift([few, other])
    assert by_shift([record("ce", 0, 0.1, shifts=[], shifted=None)]) == ""


def test_errors_after_scaling_are_in_the_csv_and_in_latex() -> None:
    scaled = {
        "clean": {"ece": 0.01, "classwise_ece": 0.0234, "adaptive_ece": 0.0345},
        "shift_aware": {"ece": 0.04, "classwise_ece": 0.05, "adaptive_ece": 0.06},
    }
    made = [record("ce", 0, 0.1, clean=metrics(0.1, accuracy=0.98765) | {"scaled": scaled}, shifted=None, shifts=[])]
    [clean] = [row for row in csv.DictReader(io.StringIO(values(made))) if row["set"] == "clean"]
    names = [f"{temperature}/{key}" for temperature, own in scaled.items() for key in own]
    assert [float(clean[name]) for name in names] == [0.01, 0.0234, 0.0345, 0.04, 0.05, 0.06]
    text = latex(made)
    assert r"In distribution & Acc. & ECE & w/ TS & w/ TS aug. & CECE & w/ TS & ACE & w/ TS & NLL \\" in text
    assert r"ce & 98.77 & 10.00 & 1.00 & 4.00 & 10.00 & 2.34 & 10.00 & 3.45 & 0.500 \\" in text


def test_errors_by_shift_in_latex(records: list[RunRecord]) -> None:
    text = by_shift_latex(records)
    assert r"fog & 37.5 $\pm$ 10.6 & 9.0 $\pm$ 2.1 \\" in text
    assert text.startswith(r"\begin{tabular}{lrr}")
    assert by_shift_latex([record("ce", 0, 0.1, shifts=[], shifted=None)]) == ""
