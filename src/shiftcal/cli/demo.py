"""`shiftcal demo`: cross-entropy, FGR and the recommended method on the embedded data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import wrong
from shiftcal.cli._shared import Set, errors_in_one_line, write_and_print_report

METHODS = ("ce", "fgr", "dfl+views")
HELP = """Train cross-entropy, FGR and dfl+views on the embedded data set and show what shift does to their confidence.

dfl+views is the method that we recommend. Takes about three minutes on two cores. Finished runs in the directory are
kept; delete it to train again."""


def demo(
    out: Annotated[Path, typer.Option(help="Directory for runs and report.")] = Path("runs/demo"),
    set_: Set = [],  # noqa: B006 (typer reads the default, nothing changes it)
) -> None:
    """Train and compare on the embedded data set."""
    with errors_in_one_line(out):
        from shiftcal.experiments.config import load_config
        from shiftcal.experiments.grid import complete_all

        if any(item.partition("=")[0].strip() == "method" for item in set_):
            raise wrong("set", "anything but the method, which the demo chooses", set_)
        configs = {method: load_config("demo", [*set_, f"method={method}"]) for method in METHODS}
        write_and_print_report(complete_all(configs, out), out, "shiftcal demo")
