"""Fill in "What we measured" of every method's page from the committed records.

python docs/make_methods.py
"""

import re
from functools import cache
from pathlib import Path

from shiftcal.records import load_records
from shiftcal.report.table import Row, rows_of

ROOT = Path(__file__).parents[1]
PAGES = Path(__file__).parent / "methods"
# What the tables are made from: a title, the records, and which methods are shown for comparison.
SOURCES = (
    ("CIFAR-10, ResNet-18, 60 epochs", "results/cifar10/seeds", ("ce",)),
    ("CIFAR-100, ResNet-18, 60 epochs", "results/cifar100/seeds", ("ce",)),
    ("CIFAR-10, ResNet-18, 60 epochs, one seed", "results/cifar10/runs", ("ce",)),
    ("CIFAR-10, ResNet-18, 60 epochs, one seed", "results/cifar10/augmix", ()),
    ("The demo, five seeds", "results/demo/runs", ("ce",)),
)
_BLOCK = re.compile(r"<!-- measured: ([^>]*) -->.*?<!-- end -->", re.DOTALL)
_COLUMNS = (("In distribution", "accuracy", 1), ("In distribution", "ece", 2))
_COLUMNS += (("Mean over shifts", "accuracy", 1), ("Mean over shifts", "ece", 2))


def filled(text: str) -> str:
    """Return a page with its tables made anew."""
    return _BLOCK.sub(lambda match: _block(match[1]), text)


def _block(names: str) -> str:
    wanted = names.split(", ")
    tables = [table for source in SOURCES if (table := _table(*source, wanted))]
    return "\n".join([f"<!-- measured: {names} -->", "", *tables, "<!-- end -->"])


@cache
def _rows(place: str) -> dict[str, Row]:
    return {row.method: row for row in rows_of(load_records(ROOT / place))}


def _table(title: str, place: str, always: tuple[str, ...], wanted: list[str]) -> str:
    rows = _rows(place)
    shown = [name for name in wanted if name in rows]
    if not shown:
        return ""
    lines = [
        f"| [{title}](../../{place}) | clean Acc. | clean ECE | shifted Acc. | shifted ECE |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys((*always, *shown)):
        cells = [rows[name].text(part, ("", key, 100, decimals)) for part, key, decimals in _COLUMNS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    for page in sorted(PAGES.glob("*.md")):
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
