"""`shiftcal bench`: a grid of methods and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import UnfinishedError
from shiftcal.cli._shared import Plugin, Set, errors_in_one_line, fail, words_of, write_and_print_report

HELP = """Run a grid of methods and seeds by a recipe, and write the table, the figures and report.html.

Finished runs are kept and interrupted ones are resumed: the same command completes what is missing, and one with other
methods, seeds or swept values adds them to the table. --sweep runs every value (several multiply); --select runs the
values with the first seed, takes the one that is best on the validation images, and runs the other seeds with it.
Methods that do the same until filter and constraint start (fgr and its ablations) share that part: the first trains it.

Example: shiftcal bench quick-cifar10 --methods ce,fgr --seeds 0-2 --sweep filter.ratio=0.03,0.05 --out runs/cifar10"""


def bench(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe or path of a TOML file.")],
    out: Annotated[Path, typer.Option(help="Directory for the runs, one subdirectory each, and the report.")],
    methods: Annotated[str, typer.Option(help="Methods, comma-separated.")] = "ce,fgr",
    seeds: Annotated[str, typer.Option(help="Seeds and ranges of them: 0-2, or 0,1,5-7.")] = "0",
    sweep: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE,…", help="Run every value of a key; repeatable, and all multiply.")
    ] = [],  # noqa: B006
    select: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE,…", help="Choose a key's value for each method; repeatable.")
    ] = [],  # noqa: B006
    by: Annotated[str, typer.Option(help="What --select compares: validation.ece, .nll, …")] = "validation.ece",
    engine: Annotated[
        str, typer.Option(help="local: one after the other; ray: on a Ray cluster, one run per GPU (extra ray).")
    ] = "local",
    workers_per_gpu: Annotated[
        int, typer.Option(help="Runs side by side on this machine's GPU (or CPU), each in a process of its own.")
    ] = 1,
    share_warmup: Annotated[
        bool, typer.Option(help="What runs have in common until filter and constraint start is trained by one of them.")
    ] = True,
    set_: Set = [],  # noqa: B006
    plugin: Plugin = [],  # noqa: B006
) -> None:
    """Run a grid."""
    failed: UnfinishedError | None = None
    with errors_in_one_line(out):
        from shiftcal.experiments.study import Study
        from shiftcal.experiments.sweep import seeds_of, swept_keys
        from shiftcal.records import RECORD, load_finished
        from shiftcal.records.gallery import galleries_of
        from shiftcal.records.selection import choices_in

        fixed = [word.partition("=")[0].strip() for word in set_]
        swept = swept_keys("sweep", sweep, fixed)
        selected = swept_keys("select", select, [*fixed, *swept])
        named = list(dict.fromkeys(words_of(methods)))
        study = Study(recipe, named, seeds_of(seeds), set_, swept, selected, by, plugin, share_warmup)
        try:
            study.complete(out, engine, workers=workers_per_gpu)
        except UnfinishedError as error:
            failed = error
            if not any(out.glob(f"*/{RECORD}")):
                raise
        records, left_out = load_finished(out)  # those of earlier cells too
        missing = left_out | (failed.failed if failed else {})
        samples, notes = galleries_of([out]), choices_in([out])
        write_and_print_report(records, out, f"shiftcal: {recipe}", missing, None, samples, notes)
    if failed:
        fail(str(failed), 1)
