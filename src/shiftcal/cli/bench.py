"""`shiftcal bench`: a grid of methods and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import UnfinishedError, wrong
from shiftcal.cli._shared import Set, errors_in_one_line, fail, words_of, write_and_print_report

HELP = """Run a grid of methods and seeds by a recipe, and write the table, the figures and report.html.

Finished runs are kept and interrupted ones are resumed: the same command completes what is missing, and one with other
methods or seeds adds them to the table.

Example: shiftcal bench quick-cifar10 --methods ce,dfl,fgr --seeds 0,1,2 --out runs/cifar10"""


def bench(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe or path of a TOML file.")],
    out: Annotated[Path, typer.Option(help="Directory for the runs, one subdirectory each, and the report.")],
    methods: Annotated[str, typer.Option(help="Methods, comma-separated.")] = "ce,fgr",
    seeds: Annotated[str, typer.Option(help="Seeds, comma-separated.")] = "0",
    engine: Annotated[
        str, typer.Option(help="local: one after the other; ray: on a Ray cluster, one run per GPU (extra ray).")
    ] = "local",
    workers_per_gpu: Annotated[
        int, typer.Option(help="Runs side by side on this machine's GPU (or CPU), each in a process of its own.")
    ] = 1,
    set_: Set = [],  # noqa: B006
) -> None:
    """Run a grid."""
    failed: UnfinishedError | None = None
    with errors_in_one_line(out):
        from shiftcal.experiments.config import load_config
        from shiftcal.experiments.grid import complete_all
        from shiftcal.records import RECORD, load_finished

        numbers = words_of(seeds)
        if not numbers or not all(number.isdigit() for number in numbers):
            raise wrong("seeds", "whole numbers, comma-separated", repr(seeds))
        cells = [(m, int(n)) for m in dict.fromkeys(words_of(methods)) for n in dict.fromkeys(numbers)]
        configs = {f"{m}-{s}": load_config(recipe, [*set_, f"method={m}", f"seed={s}"]) for m, s in cells}
        try:
            complete_all(configs, out, engine, workers=workers_per_gpu)
        except UnfinishedError as error:
            failed = error
            if not any(out.glob(f"*/{RECORD}")):
                raise
        records, left_out = load_finished(out)  # those of earlier cells too
        write_and_print_report(records, out, f"shiftcal: {recipe}", left_out | (failed.failed if failed else {}))
    if failed:
        fail(str(failed), 1)
