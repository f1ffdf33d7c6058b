"""The page of many runs: how long it takes to make, and how long the browser takes to answer.

The committed CIFAR-10 records, repeated under other names and seeds: 200 runs of 76 test sets by default.

    python benchmarks/page.py [--runs 200]
"""

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from browser import Opened, browser

from shiftcal.records import RunRecord, load_records, write_grid
from shiftcal.report.page import write_report

ROOT = Path(__file__).parents[1]
CONTROLS = [("heat", "method"), ("heat", "minus"), ("heat", "metric"), ("heat", "calibrator"), ("severity", "metric")]
CONTROLS += [("reliability", "test set"), ("risk", "images"), ("classes", "method")]
_ANSWER = """([place, label]) => {
  const found = [...document.querySelectorAll(`#${place} label`)].find((one) => one.textContent.startsWith(label));
  const select = found.querySelector("select");
  const start = performance.now();
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event("change"));
  document.body.getBoundingClientRect();
  return performance.now() - start;
}"""


def many(count: int) -> list[RunRecord]:
    """Repeat the committed records, each time as other methods."""
    known = load_records(ROOT / "results" / "cifar10" / "seeds")
    made = []
    for k in range(count):
        record = known[k % len(known)]
        name = record.method if k < len(known) else f"{record.method} {k // len(known)}"
        made.append(record.model_copy(update={"method": name}))
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    count = parser.parse_args().runs
    out = Path(tempfile.mkdtemp())
    try:
        write_grid(out / "records.jsonl", many(count))
        start = time.perf_counter()
        records = load_records(out / "records.jsonl")
        read = time.perf_counter() - start
        page = write_report(out, records, "many")
        print(f"{count} runs of 76 sets: read in {read:.1f} s, report in {time.perf_counter() - start - read:.1f} s,")
        print(f"{page.stat().st_size / 1e6:.1f} MB")
        with browser() as chromium:
            start = time.perf_counter()
            opened = Opened(chromium, page)
            print(f"opened in {time.perf_counter() - start:.1f} s")
            for place, label in CONTROLS:
                print(f"{place}, {label}: {answer(opened, place, label):.0f} ms")
            assert opened.errors == []
    finally:
        shutil.rmtree(out)


def answer(opened: Any, place: str, label: str, times: int = 7) -> float:
    """Return the median time in which a control answers, drawing and layout included."""
    return statistics.median(opened.page.evaluate(_ANSWER, [place, label]) for _ in range(times))


if __name__ == "__main__":
    main()
