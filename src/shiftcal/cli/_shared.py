"""What commands share: options, errors in one line, and the report at the end."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from shiftcal._errors import TRACEBACK, DownloadError, ParameterError, WorkerError, wrong

if TYPE_CHECKING:
    from shiftcal.records import RunRecord
    from shiftcal.records.gallery import Sample

Set = Annotated[
    list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a key of the recipe; repeatable.")
]
Weights = Annotated[
    str | None, typer.Option(help="File with weights to start from, `pretrained`, or `none` (--set train.weights=…).")
]
Holdout = Annotated[str | None, typer.Option(help="Domain to hold out as the shift (--set data.holdout=…).")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import and call the functions of other packages that the run's config.json names."),
]
# Options that say what a MODEL is, and how images become its input.
Network = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="A checkpoint's network: NAME or module:factory.")
]
ModelWeights = Annotated[str | None, typer.Option("--weights", help="File with the weights of timm/NAME.")]
GivenOutputs = Annotated[str | None, typer.Option("--outputs", help="What the model gives: logits or probabilities.")]
Classes = Annotated[Path | None, typer.Option("--classes", help="File that names the model's outputs, one a line.")]
Size = Annotated[int | None, typer.Option("--size", help="Pixels of the model's input.")]
Resize = Annotated[
    int | None, typer.Option("--resize", help="Pixels of the shorter side before the middle is cut out.")
]
Resampling = Annotated[str | None, typer.Option("--interpolation", help="bilinear, bicubic, nearest or lanczos.")]
ChannelMean = Annotated[str, typer.Option("--mean", metavar="R,G,B", help="Mean of the channels, in 0..1.")]
ChannelStd = Annotated[str, typer.Option("--std", metavar="R,G,B", help="Standard deviation of the channels.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
TrustModel = Annotated[bool, typer.Option("--trust", help="Run code that a run's config or a .pt2 file names.")]
Plugin = Annotated[
    list[str],
    typer.Option("--plugin", metavar="MODULE", help="Module that registers methods, losses, …; repeatable."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the directory.")]


def with_options(set_: list[str], weights: str | None, holdout: str | None) -> list[str]:
    """Turn options into the keys that they stand for."""
    named = {"train.weights": weights, "data.holdout": holdout}
    return [*set_, *(f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None)]


def plugin_words(plugins: list[str]) -> list[str]:
    """Write plugins as the options that name them."""
    return [word for module in plugins for word in ("--plugin", module)]


def words_of(text: str) -> list[str]:
    """Split a comma-separated option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def outputs_of(word: str | None) -> Literal["logits", "probabilities"] | None:
    """Read what a model gives."""
    if word not in (None, "logits", "probabilities"):
        raise wrong("outputs", "logits or probabilities", repr(word))
    return word  # type: ignore[return-value]


def channels_of(name: str, text: str) -> tuple[float, ...]:
    """Read a number for each channel, or nothing."""
    try:
        values = tuple(float(word) for word in words_of(text))
    except ValueError:
        raise wrong(name, "three numbers, such as 0.5,0.5,0.5", repr(text)) from None
    if len(values) not in (0, 3) or (name == "std" and any(value <= 0 for value in values)):
        raise wrong(name, "three numbers, such as 0.5,0.5,0.5 (those of std above 0)", repr(text))
    if any(not 0 <= value <= 1 for value in values):
        raise wrong(name, "three numbers in 0..1, as images are there (divide grey levels by 255)", repr(text))
    return values


def is_distributed() -> bool:
    """Tell whether this process is one of several that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def was_restarted() -> bool:
    """Tell whether torchrun started this again after a rank had died: then the run resumes."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def resume_command(command: str, words: list[str], set_: list[str], out: Path) -> str:
    """Write the command that continues a run."""
    changes = [word for item in set_ for word in ("--set", item)]
    start = "torchrun … -m shiftcal" if is_distributed() else "shiftcal"
    return f"{start} {shlex.join([command, *words, *changes, '--out', str(out), '--resume'])}"


@contextmanager
def errors_in_one_line(
    out: Path, resume: str | None = None, stopped: str | None = None, code: int = 1
) -> Iterator[None]:
    """Turn errors into one line on standard error, and a signal into a word on where the checkpoint is.

    `resume` is the command that continues; `stopped` is what to say instead where there are no checkpoints; `code` is
    the exit code where numbers are not finite or files cannot be written.
    """
    try:
        yield
    except typer.Exit:  # a RuntimeError, which is no other rank's
        raise
    except ParameterError as error:
        fail(str(error), 2)
    except ValueError as error:
        if os.environ.get(TRACEBACK):
            raise
        fail(f"{type(error).__name__}: {error} ({TRACEBACK}=1 shows where.)", 2)
    except WorkerError as error:
        _fail_with_resume(str(error), out, resume)
    except MemoryError as error:
        _fail_with_resume(_want_of_memory(error), out, resume)
    except RuntimeError as error:
        if _is_want_of_memory(error):
            _fail_with_resume(_want_of_memory(error), out, resume)
        if lost := WorkerError.told_by(error):  # torch raises it from a signal handler, wherever the program is
            _fail_with_resume(str(lost), out, resume)
        if not is_distributed() or isinstance(error, NotImplementedError | RecursionError):
            raise
        fail(f"Another rank stopped, or could not be reached: {error}", 1)
    except FloatingPointError as error:
        fail(f"{error} {_last_checkpoint(out)}" if stopped is None else str(error), code)
    except BrokenPipeError:
        fail("Standard output was closed.", 1)
    except DownloadError as error:
        fail(str(error), 1)
    except OSError as error:
        if (place := _elsewhere(error, out)) is not None:
            fail(str(wrong("file", "one that can be read or written", f"{place}: {error.strerror}")), code)
        fail(str(wrong("out", "a directory with room that can be written", f"{out}: {error}")), code)
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code not in (143, 129):  # SIGTERM, SIGHUP: after a checkpoint
            raise
        hint = f" Continue with: {resume}" if resume else " The same command continues."
        end = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
        if is_distributed() and os.environ["RANK"] != "0":
            raise typer.Exit(end) from None
        fail(f"Stopped. {stopped or _last_checkpoint(out) + hint}", end)


def _elsewhere(error: OSError, out: Path) -> Path | None:
    """Return the file that an error is about, where it is not one below `out`, nor a folder that `out` is in."""
    if not isinstance(error.filename, str) or error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
        return None
    place, out = Path(error.filename).absolute(), out.absolute()
    return None if place.is_relative_to(out) or out.is_relative_to(place) else place


def _is_want_of_memory(error: RuntimeError) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _want_of_memory(error: BaseException) -> str:
    reason = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
    return f"There is not enough memory: {reason}. Smaller batches take less (train.batch_size, evaluation.batch_size)."


def _fail_with_resume(message: str, out: Path, resume: str | None) -> NoReturn:
    if hasattr(signal, "SIGCHLD"):  # with every worker that ends, torch's handler would raise again
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fail(f"{message} {_last_checkpoint(out)}{f' Continue with: {resume}' if resume else ''}", 1)


def fail(message: str, code: int) -> NoReturn:
    """Print a line on standard error and exit."""
    with suppress(OSError):  # the terminal may be gone
        print(message, file=sys.stderr)
    raise typer.Exit(code)


def _last_checkpoint(out: Path) -> str:
    found = sorted(out.glob("**/checkpoints/epoch-*"), key=lambda path: path.stat().st_mtime)
    return f"Last checkpoint: {found[-1]}." if found else "There is no checkpoint yet."


def show_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    """Print the package's warnings for its user in one line; others keep their place in the code."""
    own = category is UserWarning and Path(filename).is_relative_to(Path(__file__).parents[1])
    text = f"Warning: {message}\n" if own else warnings.formatwarning(message, category, filename, lineno)
    sys.stderr.write(text)


def report_files(record: RunRecord, out: Path) -> list[Path]:
    """Write the report of a run into its directory, for its trackers, and list the files."""
    from shiftcal.experiments.grid import REPORT_FILES
    from shiftcal.report.page import write_report
    from shiftcal.report.table import before_and_after

    records = before_and_after(record) if record.before is not None else [record]
    write_report(out, records, f"shiftcal: {out.resolve().name}")
    return sorted(out / name for name in REPORT_FILES if (out / name).is_file())


def write_and_print_report(
    records: list[RunRecord],
    out: Path,
    title: str,
    left_out: Mapping[str, str] | None = None,
    against: str | None = None,
    galleries: Mapping[str, Sequence[Sample]] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write the report of records and print its table: in Markdown where the output is no terminal."""
    if is_distributed() and int(os.environ["RANK"]) > 0:  # without torch, which reports do not need
        return
    from shiftcal.records import SELECTION
    from shiftcal.report import paired
    from shiftcal.report.page import write_report
    from shiftcal.report.table import before_and_after
    from shiftcal.report.tables import all_tables
    from shiftcal.report.terminal import print_table

    if len(records) == 1 and records[0].before is not None:
        records = before_and_after(records[0])
    page = write_report(out, records, title, left_out, against, galleries, notes)
    if sys.stdout.isatty():
        print_table(records)
        typer.echo(f"\n{paired.markdown(records, against)}" if against else "", nl=bool(against))
    else:
        typer.echo(all_tables(records, against))
    if hidden := [name for name, reason in (left_out or {}).items() if reason.startswith("not chosen")]:
        typer.echo(f"Left out, since {SELECTION} has another choice: {', '.join(hidden)}")
    typer.echo(f"Report: {page}")
