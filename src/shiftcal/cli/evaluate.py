"""`shiftcal eval`: finished runs again, from their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shiftcal._errors import wrong
from shiftcal.cli._shared import Plugin, Trust, errors_in_one_line, write_and_print_report

HELP = """Evaluate finished runs again from their weights.

Without --data, or with the run's own data, the record, figures and report.html in DIR are renewed. With --data and
another folder of images, all of it (or its test/) is one test set: temperatures stay those of the run, and record,
figures and report go to DIR/eval-FOLDER. Classes are matched by name.

Example: shiftcal eval runs/mine --data new-hospital"""


def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run, or a directory of runs.")],
    data: Annotated[
        Path | None,
        typer.Option(help="Another folder of images to measure; of a data set with a name, where it is now."),
    ] = None,
    moved: Annotated[
        bool,
        typer.Option(
            "--moved",
            help="--data is the run's own data in a new place: the same split is used, the record is renewed.",
        ),
    ] = False,
    set_: Annotated[
        list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a key of the evaluation; repeatable.")
    ] = [],  # noqa: B006
    plugin: Plugin = [],  # noqa: B006
    trust: Trust = False,
) -> None:
    """Evaluate finished runs again."""
    with errors_in_one_line(directory):
        from shiftcal._plugins import load_plugins
        from shiftcal.experiments.finished import check_finished, reevaluate
        from shiftcal.experiments.other_folder import is_own_data
        from shiftcal.records import find_runs, load_finished

        if moved and data is None:
            raise wrong("moved", "given with --data FOLDER, where the run's data is now", "--moved alone")
        load_plugins(plugin)
        runs = find_runs(directory)
        for run in runs:
            check_finished(run)
        if data is not None and not moved and not all(is_own_data(run, data, trust=trust) for run in runs):
            _measure(runs, directory, data, set_, trust)
            return
        records = [reevaluate(run, root=data, overrides=set_, trust=trust) for run in runs]
        for run, record in zip(runs, records, strict=True):
            typer.echo(f"{run}: its own data again, {record.evaluation.clean.n} test images.")
        shown, left_out = load_finished(directory)  # without candidates that were not chosen
        write_and_print_report(shown, directory, f"shiftcal: {directory.resolve().name}", left_out)
        typer.echo(f"Renewed: {', '.join(str(run / 'record.json') for run in runs)}")


def _measure(runs: list[Path], directory: Path, data: Path, set_: list[str], trust: bool) -> None:
    """Measure runs on a folder that is not theirs, and write a report of it."""
    from shiftcal.experiments.other_folder import measure_folder

    made = [measure_folder(run, data, overrides=set_, trust=trust) for run in runs]
    out = made[0][1] if runs == [directory] else directory / f"eval-{data.resolve().name}"
    out.mkdir(exist_ok=True)
    records = [record for record, _ in made]
    note = f"'In distribution' is {data.resolve().name} here, which may be anything but that."
    title = f"shiftcal: {directory.resolve().name} on {data.resolve().name}"
    write_and_print_report(records, out, title, notes=[note])
    typer.echo(f"Note: {note}")
    part = "test/ of " if (data / "test").is_dir() else ""
    for run, (record, place) in zip(runs, made, strict=True):
        kept = record.evaluation.temperatures
        told = ", ".join(f"{name} {kept[name]:.2f}" for name in sorted(record.evaluation.scaled_by))
        typer.echo(
            f"{run}: measured on {record.evaluation.clean.n} images, all of {part}{data}, as one test set. "
            f"Temperatures of the run: {told}. Record: {place / 'record.json'}"
        )
