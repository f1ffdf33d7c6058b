"""`shiftcal card`: a run or an audit as a folder to be shared, with a model card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shiftcal.cli._shared import errors_in_one_line

if TYPE_CHECKING:
    from shiftcal.records import RunRecord
    from shiftcal.records.audit import AuditRecord

HELP = """Write a model card, and with it a folder that can be uploaded as it is.

Of a run, DIR gets README.md (the card), .eval_results, model.safetensors, config.json and record.json, without the
paths of this machine; shiftcal.load("DIR") predicts with it. Of an audit, the card, its results and audit.json.

Example: shiftcal card runs/mine --license mit --calibrator audits/mine/calibrator.safetensors --out share/mine"""


def card(
    source: Annotated[Path, typer.Argument(metavar="RUN|AUDIT", help="Directory of a finished run, or of an audit.")],
    out: Annotated[Path, typer.Option(help="The folder: new, empty, or written by this command.")],
    calibrator: Annotated[Path | None, typer.Option(metavar="FILE", help="File of `audit --calibrate`.")] = None,
    name: Annotated[str | None, typer.Option(help="The model's name; the directory's by default.")] = None,
    license_: Annotated[str | None, typer.Option("--license", help="Its licence, such as apache-2.0.")] = None,
    dataset: Annotated[str | None, typer.Option(metavar="ID", help="Its data set's id on the Hub.")] = None,
) -> None:
    """Write a model card."""
    with errors_in_one_line(out, stopped="The folder is not complete: the same command writes it again."):
        from shiftcal.inference.card import checked_calibrator
        from shiftcal.records import RunRecord
        from shiftcal.report.card import README, RESULTS, Told, card_of_audit, card_of_run, results_of, write_folder

        record, files = _opened(source)
        kind = None
        if calibrator is not None:
            seen = record.data.classes if record.data is not None else ()
            kind, more = checked_calibrator(calibrator, seen)
            files |= more
        told = Told(name or _name(source, record), license_, dataset, kind)
        text = card_of_run(record, told) if isinstance(record, RunRecord) else card_of_audit(record, told)
        write_folder(out, files | {README: text.encode(), RESULTS: results_of(record, told).encode()})
        typer.echo(f"Card: {out / README}")
        if license_ is None:
            typer.echo("It names no licence (--license).")


def _opened(source: Path) -> tuple[RunRecord | AuditRecord, dict[str, bytes | Path]]:
    """Read a run or an audit, with the files of it that are shared."""
    from shiftcal.inference.card import shared_run
    from shiftcal.records.audit import AUDIT, read_audit

    if (source / AUDIT).is_file():
        record = read_audit(source)
        return record, {AUDIT: (record.to_json() + "\n").encode()}
    shared = shared_run(source)
    return shared.record, dict(shared.files)


def _name(source: Path, record: RunRecord | AuditRecord) -> str:
    from shiftcal.records.audit import AuditRecord

    return record.model.name if isinstance(record, AuditRecord) else source.resolve().name
