"""The command line. Heavy packages are imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from shiftcal._checks import wrong
from shiftcal.methods import METHODS

# Before torch is imported: by default its waiting threads spin so long that a busy machine trains ten times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

app = typer.Typer(
    help="Train image classifiers whose confidence stays honest when the data shifts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Set = Annotated[
    list[str], typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a key of the recipe; repeatable.")
]

Weights = Annotated[
    str | None, typer.Option(help="File with weights to start from, `pretrained`, or `none` (--set train.weights=…).")
]
Holdout = Annotated[str | None, typer.Option(help="Domain to hold out as the shift (--set data.holdout=…).")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the directory.")]

DEMO_METHODS = ("ce", "fgr")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for runs and report.")] = Path("runs/demo"),
    set_: Set = [],  # noqa: B006 (typer reads the default, nothing changes it)
) -> None:
    """Train cross-entropy and FGR on the embedded data set and show what shift does to the confidence of each.

    Takes about two minutes on two cores. Finished runs in the directory are kept; delete it to train again.
    """
    with _friendly(out):
        from shiftcal.bench.grid import complete_all
        from shiftcal.training.config import load_config

        if any(item.partition("=")[0].strip() == "method" for item in set_):
            raise wrong("set", "anything but the method, which the demo chooses", set_)
        configs = {method: load_config("demo", [*set_, f"method={method}"]) for method in DEMO_METHODS}
        records = complete_all(configs, out)
        _report(records, out, "shiftcal demo")


@app.command(
    help=f"""Train one method by a recipe, evaluate it on clean and shifted test sets, and write its record.

    Example: shiftcal train demo --set method=fgr --set train.epochs=4 --set seed=3 --out runs/mine

    Methods: {", ".join(METHODS)}. Other keys are those of the recipe, such as gamma.fgr or filter.ratio."""
)
def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe (demo) or path of a TOML file.")],
    out: Annotated[Path, typer.Option(help="Directory for the run; new or empty.")],
    set_: Set = [],  # noqa: B006
    weights: Weights = None,
    holdout: Holdout = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same result every time (--set engine.deterministic=true).")
    ] = False,
    resume: Resume = False,
) -> None:
    """Train one method by a recipe; the decorator's help lists the methods there are."""
    set_ = _with_options(set_, weights, holdout) + ["engine.deterministic=true"] * deterministic
    with _friendly(out, _again("train", [recipe], set_, out)):
        from shiftcal.bench.run import complete
        from shiftcal.report.table import print_table
        from shiftcal.training.config import load_config

        if resume and not out.exists():
            typer.echo(f"There is nothing to continue in {out}: the run starts from the beginning.")
        record = complete(load_config(recipe, set_), out, resume=resume or _restarted())
        print_table([record])
        typer.echo(f"Record: {out / 'record.json'}")


@app.command(
    help="""Make a trained classifier's confidence honest: freeze it but for its last layer, and train that with FGR.

    CHECKPOINT is the directory of a run, or a file with the weights of a model that the recipe names: safetensors, or
    a state dict saved by torch. What the network says about several views of each training image is kept, so that it
    takes minutes. The table shows the checkpoint before and after.

    Example: shiftcal finetune runs/cifar10-ce --out runs/cifar10-finetuned

    Example: shiftcal finetune theirs.pt --recipe quick-cifar10 --set train.model=their_code:make --out runs/mine"""
)
def finetune(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Directory of a run, or file of weights.")],
    out: Annotated[Path, typer.Option(help="Directory for the run; new or empty.")],
    recipe: Annotated[
        str | None, typer.Option(help="Recipe that names data and model; that of the run by default.")
    ] = None,
    set_: Set = [],  # noqa: B006
    holdout: Holdout = None,
    resume: Resume = False,
) -> None:
    """Train a classifier's last layer; the decorator's help says how."""
    set_ = _with_options(set_, None, holdout)
    words = [str(checkpoint), *(["--recipe", recipe] if recipe else [])]
    with _friendly(out, _again("finetune", words, set_, out)):
        from shiftcal.bench.run import complete
        from shiftcal.report.table import before_and_after, print_table
        from shiftcal.training.config import config_of_run, load_config
        from shiftcal.training.finetune import check_keys

        if not checkpoint.exists():
            raise wrong("CHECKPOINT", "the directory of a run, or a file with weights", str(checkpoint))
        if recipe is None and checkpoint.is_file():
            raise wrong("recipe", "given, since a file does not tell its data and model", "nothing")
        check_keys(set_)
        changes = ["method=fgr", *set_, f"finetuned_from={json.dumps(str(checkpoint))}"]
        config = load_config(recipe, changes) if recipe else config_of_run(checkpoint, changes)
        record = complete(config, out, resume=resume)
        print_table(before_and_after(record))
        typer.echo(f"Record: {out / 'record.json'}")


@app.command(
    help="""Run a grid of methods and seeds by a recipe, and write the table, the figures and report.html.

    Finished runs are kept and interrupted ones go on: the same command completes what is missing, and one with other
    methods or seeds adds them to the table.

    Example: shiftcal bench quick-cifar10 --methods ce,dfl,fgr --seeds 0,1,2 --out runs/cifar10"""
)
def bench(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe or path of a TOML file.")],
    out: Annotated[Path, typer.Option(help="Directory for the runs, one subdirectory each, and the report.")],
    methods: Annotated[str, typer.Option(help="Methods, comma-separated.")] = "ce,fgr",
    seeds: Annotated[str, typer.Option(help="Seeds, comma-separated.")] = "0",
    engine: Annotated[
        str, typer.Option(help="local: one after the other; ray: on a Ray cluster, one run per GPU (extra ray).")
    ] = "local",
    set_: Set = [],  # noqa: B006
) -> None:
    """Run a grid; the decorator's help says how."""
    failed = None
    with _friendly(out):
        from shiftcal.bench.grid import complete_all
        from shiftcal.bench.run import UnfinishedError
        from shiftcal.records import load_records
        from shiftcal.report.table import markdown
        from shiftcal.training.config import load_config

        numbers = _words(seeds)
        if not numbers or not all(number.isdigit() for number in numbers):
            raise wrong("seeds", "whole numbers, comma-separated", repr(seeds))
        cells = [
            (method, int(number)) for method in dict.fromkeys(_words(methods)) for number in dict.fromkeys(numbers)
        ]
        configs = {f"{m}-{s}": load_config(recipe, [*set_, f"method={m}", f"seed={s}"]) for m, s in cells}
        try:
            complete_all(configs, out, engine)
        except UnfinishedError as error:
            failed = str(error)
            if not any(out.glob("*/record.json")):
                raise
        records = load_records(out)  # those of earlier cells too
        _report(records, out, f"shiftcal: {recipe}")
        typer.echo("\n" + markdown(records))
    if failed:
        _fail(failed, 1)


@app.command("eval")
def evaluate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run, or a directory of runs.")],
    data: Annotated[Path | None, typer.Option(help="Where the data is now, if not where the run found it.")] = None,
) -> None:
    """Evaluate finished runs again from their weights; writes records, figures and report.html into DIR."""
    with _friendly(directory):
        from shiftcal.bench.run import check_finished, reevaluate
        from shiftcal.records import find_runs

        runs = find_runs(directory)
        for run in runs:
            check_finished(run)
        records = [reevaluate(run, root=data) for run in runs]
        _report(records, directory, f"shiftcal: {directory.resolve().name}")


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A finished run, or a directory of runs.")],
    out: Annotated[Path | None, typer.Option(help="Where to write; DIR by default.")] = None,
) -> None:
    """Write the table, the figures and report.html of the records in DIR, without training or evaluating."""
    with _friendly(out or directory):
        from shiftcal.records import load_records

        records = load_records(directory)
        (out or directory).mkdir(parents=True, exist_ok=True)
        _report(records, out or directory, f"shiftcal: {directory.resolve().name}")


@app.command(
    help="""Write corrupted copies of a test set: noise, blur, weather and digital corruptions at five severities.

    SRC is an .npy file of uint8 images [N, H, W, 3], with labels.npy beside it, or a folder with one folder of images
    for each class. DST gets CIFAR-10-C's layout for the former (NAME.npy with the severities one after the other, and
    labels.npy) and ImageNet-C's for the latter (NAME/SEVERITY/CLASS/FILE). The same command completes what was
    interrupted.

    Example: shiftcal corrupt test.npy corrupted --constants cifar

    Example: shiftcal corrupt photo.jpg sheet.png --preview --constants imagenet"""
)
def corrupt(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="An .npy file, a folder of class folders, an image.")],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="A new folder; with --preview, a PNG file.")],
    constants: Annotated[
        str, typer.Option(help="Whose severities: cifar (32×32), tiny-imagenet (64×64) or imagenet (224×224).")
    ] = "cifar",
    names: Annotated[str, typer.Option(help="Corruptions, comma-separated; all: the 15, extra: the 4 others.")] = "all",
    severities: Annotated[str, typer.Option(help="Severities, comma-separated.")] = "1,2,3,4,5",
    seed: Annotated[int, typer.Option(help="Seed of the random corruptions.")] = 0,
    frost: Annotated[str | None, typer.Option(help="Folder with photographs of frost, or drawn.")] = None,
    labels: Annotated[Path | None, typer.Option(help="An .npy file of class indices for an .npy SRC.")] = None,
    layout: Annotated[str | None, typer.Option(help="arrays or tree, instead of what SRC suggests.")] = None,
    size: Annotated[int | None, typer.Option(help="Resize and cut files to SIZE×SIZE, as ImageNet-C does.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    preview: Annotated[bool, typer.Option("--preview", help="Write one contact sheet of the first image.")] = False,
) -> None:
    """Write corrupted test sets; the decorator's help says what they are."""
    with _friendly(destination, stopped="What is finished is kept; the same command goes on."):
        from shiftcal import corrupted_sets
        from shiftcal.corruptions import named
        from shiftcal.training.run import resolve_device

        chosen = named(_words(names))
        levels = _severities(severities)
        images = corrupted_sets.open_source(source, labels=labels, size=size)
        if preview:
            _preview(images, destination, chosen, constants, seed, frost)
            return
        if source.is_file() and images.array is None:
            raise wrong("SRC", "an .npy file or a folder (one image goes with --preview)", str(source))
        corrupted_sets.write_corrupted(
            images,
            destination,
            names=chosen,
            severities=levels,
            constants=constants,
            seed=seed,
            frost=frost,
            layout=layout,  # type: ignore[arg-type]
            device=resolve_device(device),
        )
        typer.echo(f"Corrupted sets: {destination}")
        if images.targets is None:
            typer.echo("They have no labels.npy: there was none beside SRC, and --labels named none.")


data_app = typer.Typer(help="List data sets and put them where they are found.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list() -> None:
    """List the data sets by name, and where each is or how to get it."""
    with _friendly(Path()):
        from shiftcal.data import DATASETS
        from shiftcal.data.prepare import state

        for name in DATASETS:
            typer.echo(f"{name:<14} {state(name)}")


@data_app.command("prepare")
def data_prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a data set, see `shiftcal data list`.")],
    source: Annotated[Path | None, typer.Option("--from", help="A folder or archive that holds it.")] = None,
) -> None:
    """Download a data set, or take it from a folder or archive, and read it to see that it is all right."""
    with _friendly(Path()):
        from shiftcal.data.prepare import prepare

        made = prepare(name, source)
        counts = f"{len(made.train):,} training, {len(made.validation):,} validation and {len(made.test):,} test images"
        typer.echo(f"{name}: {counts} of {len(made.classes)} classes, {list(made.train.shape)}.")


def _with_options(set_: list[str], weights: str | None, holdout: str | None) -> list[str]:
    """Turn options into the keys that they stand for."""
    named = {"train.weights": weights, "data.holdout": holdout}
    return [*set_, *(f"{key}={json.dumps(value)}" for key, value in named.items() if value is not None)]


def _several_processes() -> bool:
    """Tell whether this process is one of several that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _restarted() -> bool:
    """Tell whether torchrun started this again after a process had died: then the run goes on."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _again(command: str, words: list[str], set_: list[str], out: Path) -> str:
    """Write the command that continues a run."""
    changes = [word for item in set_ for word in ("--set", item)]
    start = "torchrun … -m shiftcal" if _several_processes() else "shiftcal"
    return f"{start} {shlex.join([command, *words, *changes, '--out', str(out), '--resume'])}"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _severities(text: str) -> list[int]:
    words = _words(text)
    if not words or not all(word in ("1", "2", "3", "4", "5") for word in words):
        raise wrong("severities", "one or more of 1, 2, 3, 4, 5, comma-separated", repr(text))
    return sorted({int(word) for word in words})


def _preview(source: Any, path: Path, names: Sequence[str], constants: str, seed: int, frost: str | None) -> None:
    from shiftcal import corrupted_sets
    from shiftcal.records import write_atomically
    from shiftcal.report.figures import contact_sheet

    if path.suffix.lower() != ".png" or path.is_dir():
        raise wrong("DST", "a PNG file with --preview", repr(str(path)))
    labels, rows = corrupted_sets.preview(source, names=names, constants=constants, seed=seed, frost=frost)
    sheet = contact_sheet([label.replace("_", " ") for label in labels], rows, ["clean", "1", "2", "3", "4", "5"])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, sheet)
    typer.echo(f"Contact sheet: {path}")


def _report(records: list[dict[str, Any]], out: Path, title: str) -> None:
    if _several_processes() and int(os.environ["RANK"]) > 0:  # without torch, which reports do not need
        return
    from shiftcal.report.page import write_report
    from shiftcal.report.table import before_and_after, print_table

    if len(records) == 1 and "before" in records[0]:
        records = before_and_after(records[0])
    page = write_report(out, records, title)
    print_table(records)
    typer.echo(f"Report: {page}")


def _version(show: bool) -> bool:
    if show:
        from shiftcal import __version__

        typer.echo(f"shiftcal {__version__}")
        raise typer.Exit
    return show


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train image classifiers whose confidence stays honest when the data shifts."""


@contextmanager
def _friendly(out: Path, again: str | None = None, stopped: str | None = None) -> Iterator[None]:
    """Turn errors into one line on standard error, and Ctrl-C into a word on where the checkpoint is.

    `again` is the command that continues; `stopped` is what to say instead where there are no checkpoints.
    """
    try:
        yield
    except ValueError as error:
        _fail(str(error), 2)
    except RuntimeError as error:
        if not _several_processes() or isinstance(error, NotImplementedError | RecursionError):
            raise
        _fail(f"A process that trains with this one stopped, or could not be reached: {error}", 1)
    except FloatingPointError as error:
        _fail(f"{error} {_last_checkpoint(out)}", 1)
    except BrokenPipeError:
        _fail("Standard output was closed.", 1)
    except OSError as error:
        unwritable = wrong("out", "a directory with room that can be written", f"{out}: {error}")
        _fail(str(error if "could not be fetched" in str(error) else unwritable), 1)
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code not in (143, 129):  # SIGTERM, SIGHUP: after a checkpoint
            raise
        hint = f" Continue with: {again}" if again else " The same command continues."
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
        if _several_processes() and os.environ["RANK"] != "0":
            raise typer.Exit(code) from None
        _fail(f"Stopped. {stopped or _last_checkpoint(out) + hint}", code)


def _fail(message: str, code: int) -> None:
    with suppress(OSError):  # the terminal may be gone
        print(message, file=sys.stderr)
    raise typer.Exit(code)


def _in_one_line(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
    """Print what the package warns of for its user; other packages' warnings keep their place in the code."""
    own = category is UserWarning and Path(filename).is_relative_to(Path(__file__).parent)
    text = f"Warning: {message}\n" if own else warnings.formatwarning(message, category, filename, lineno)
    sys.stderr.write(text)


def _last_checkpoint(out: Path) -> str:
    found = sorted(out.glob("**/checkpoints/epoch-*"), key=lambda path: path.stat().st_mtime)
    return f"Last checkpoint: {found[-1]}." if found else "There is no checkpoint yet."


def main() -> None:
    """Run the command line; where torchrun started several, they work together and the first one speaks."""
    warnings.showwarning = _in_one_line  # type: ignore[assignment]
    if not _several_processes():
        app()
        return
    from shiftcal import _ranks

    try:
        _ranks.join()
    except (RuntimeError, TimeoutError) as error:
        print(f"The other processes could not be reached: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    with ExitStack() as stack:
        stack.callback(_ranks.leave)
        if _ranks.rank() > 0:
            stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        app()
