"""The command line as a user meets it. What needs a process of its own gets one."""

import copy
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_ins import write_class_folders
from typer.testing import CliRunner

from shiftcal.cli import app
from shiftcal.experiments import grid
from shiftcal.experiments import setup as run_setup
from shiftcal.experiments.config import Config, EvaluationSettings, load_config
from shiftcal.experiments.setup import load_dataset
from shiftcal.records import load_records

TINY = ["data.train=160", "data.validation=40", "data.test=40", "train.epochs=2", "train.batch_size=32"]
TINY += ['evaluation.corruptions=["contrast"]']
RESULTS = Path(__file__).parents[2] / "results"
OPTIONS = [word for item in TINY for word in ("--set", item)]


def shiftcal(*words: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shiftcal", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)


def invoke(*words: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*map(str, words)])
    return result.exit_code, result.stdout, result.stderr


COMMANDS = [
    [],
    *([name] for name in ["demo", "train", "finetune", "bench", "eval", "report", "recipes", "data", "audit", "gate"]),
    *([name] for name in ["export", "predict", "card"]),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_complete_and_imports_nothing_heavy(command: list[str]) -> None:
    code = (
        "import sys\nfrom shiftcal.cli import app\n"
        f"try: app({[*command, '--help']!r})\n"
        "finally: print(sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.rstrip().endswith("[]")
    expected = {
        "": ["demo", "train", "finetune", "eval", "--version"],
        "demo": ["--out", "--set"],
        "train": ["--out", "--set", "--resume", "--weights", "--holdout", "RECIPE"],
        "finetune": ["--out", "--set", "--resume", "--recipe", "CHECKPOINT"],
        "bench": ["RECIPE", "--methods", "--seeds", "--out"],
        "eval": ["DIR", "--data", "--moved"],
        "report": ["DIR", "--out"],
        "recipes": ["show"],
        "data": ["list", "prepare"],
        "export": ["MODEL", "--calibrator", "--to", "--data", "--size"],
        "predict": ["MODEL", "FOLDER", "--calibrator", "--out", "--all"],
        "card": ["RUN|AUDIT", "--out", "--license", "--calibrator"],
        "audit": ["MODEL", "--data", "--predictions", "--shift", "--out"],
        "gate": ["AUDIT", "--max-ece", "--strict", "--where"],
    }
    for word in expected["".join(command)]:
        assert word in answer.stdout


def numbers(row: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, float)}


def test_recipes_are_listed_and_shown() -> None:
    code, stdout, _ = invoke("recipes")
    assert code == 0
    names = [line.split()[0] for line in stdout.splitlines() if line and not line.startswith("`")]
    assert {"demo", "quick-cifar10", "released-cifar10-resnet50"} <= set(names)
    code, stdout, _ = invoke("recipes", "show", "paper-cifar10-resnet50")
    assert code == 0
    shown = tomllib.loads(stdout)
    assert (shown["train"]["epochs"], shown["gamma"]["fgr"], shown["evaluation"]["bins"]) == (350, 3.0, 15)
    code, _, stderr = invoke("recipes", "show", "paper-cifar10")
    assert (code, "Did you mean 'paper-cifar10-resnet50'?" in stderr or "Did you mean" in stderr) == (2, True)


def test_version() -> None:
    assert invoke("--version")[:2] == (0, "shiftcal 0.1.0\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid of one finished run, to be copied."""
    out = tmp_path_factory.mktemp("finished") / "grid"
    assert invoke("bench", "demo", *OPTIONS, "--methods", "ce", "--out", out)[0] == 0
    return out


@pytest.fixture
def grid_of_one(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished grid with one run, ce-0."""
    return Path(shutil.copytree(finished, tmp_path / "grid"))


def test_train_leaves_a_record_and_eval_agrees_with_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "demo", *OPTIONS, "--set", "method=fgr", "--set", "seed=3", "--set", "evaluation.bins=10"]
    code, stdout, stderr = invoke(*words, "--out", out)
    assert code == 0, stderr
    assert "fgr  epoch 2/2  loss" in stdout
    assert "conflicts" in stdout
    record = json.loads((out / "record.json").read_text())
    assert (record["method"], record["seed"], record["config"]["train"]["epochs"]) == ("fgr", 3, 2)
    assert {"versions", "machine", "device", "seconds", "history", "evaluation"} <= set(record)
    evaluation = record["evaluation"]
    assert len(evaluation["shifts"]) == 10
    assert len(evaluation["reliability"]["clean"]["count"]) == 10
    assert record["seconds"]["train"] == pytest.approx(sum(entry["seconds"] for entry in record["history"]))
    mean = sum(row["ece"] for row in evaluation["shifts"]) / 10
    assert evaluation["shifted"]["ece"] == pytest.approx(mean)
    assert sum(evaluation["reliability"]["shifted"]["count"]) == 10 * 40
    assert record["data"]["counts"] == {"train": 160, "validation": 40, "test": 40}
    assert record["data"]["classes"][0] == "disc"
    assert record["weights"]["sha256"] == hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    evaluation = copy.deepcopy(evaluation)
    record["evaluation"]["clean"]["ece"] = 0.7  # what eval has to renew
    (out / "record.json").write_text(json.dumps(record))
    code, stdout, stderr = invoke("eval", out)
    assert code == 0, stderr
    again = json.loads((out / "record.json").read_text())
    assert "evaluated_again" in again
    assert numbers(again["evaluation"]["clean"]) == pytest.approx(numbers(evaluation["clean"]), abs=1e-6)
    assert (out / "report.html").is_file()

    code, stdout, _ = invoke(*words, "--out", out, "--resume")
    assert code == 0
    assert "epoch" not in stdout, "a finished run is not trained again"
    assert "fgr: finished earlier and kept" in stdout


@pytest.mark.slow
def test_bench_runs_a_grid_and_completes_what_is_missing(tmp_path: Path) -> None:
    words = ["bench", "demo", *OPTIONS, "--methods", "ce,fgr", "--seeds", "0,3", "--out", tmp_path / "grid"]
    code, stdout, stderr = invoke(*words)
    assert code == 0, stderr
    cells = {"ce-0", "ce-3", "fgr-0", "fgr-3"}
    assert cells | {"report.html", "table.md"} <= {path.name for path in (tmp_path / "grid").iterdir()}
    assert "| ce | " in stdout
    assert " ± " in stdout
    (tmp_path / "grid" / "fgr-3" / "record.json").unlink()
    before = {name: (tmp_path / "grid" / name / "record.json").stat().st_mtime_ns for name in cells - {"fgr-3"}}
    code, again, stderr = invoke(*words)
    assert code == 0, stderr
    assert again.count("finished earlier and kept") == 3
    assert before == {name: (tmp_path / "grid" / name / "record.json").stat().st_mtime_ns for name in cells - {"fgr-3"}}
    table = stdout.partition("| In distribution")[2]
    assert again.partition("| In distribution")[2] == table, "the same table"
    # Other cells join those that are there, unless something else differs.
    more = ["bench", "demo", *OPTIONS, "--out", tmp_path / "grid", "--methods", "dfl"]
    code, stdout, stderr = invoke(*more)
    assert code == 0, stderr
    assert all(f"| {method} |" in stdout for method in ("ce", "dfl", "fgr"))
    code, _, stderr = invoke(*more[:-1], "rect-only", "--set", "train.batch_size=16")
    assert (code, "where ce-0 has train.batch_size = 32 instead of 16" in stderr) == (2, True), stderr
    assert not (tmp_path / "grid" / "rect-only-0").exists()
    (tmp_path / "grid" / "dfl-0").rename(tmp_path / "grid" / "copy")
    code, _, stderr = invoke(*more)
    assert (code, "where copy has dfl with seed 0" in stderr) == (2, True), stderr
    (tmp_path / "grid" / "copy" / "config.json").write_text('{"architectures": []}')
    code, _, stderr = invoke(*more)
    assert (code, "with copy: " in stderr) == (2, True), stderr
    assert invoke(*more[:-1], ",")[0] == 2
    for bad, message in ((["--seeds", "a"], "`seeds` should be whole numbers"), (["--methods", "cee"], "Did you mean")):
        code, _, stderr = invoke("bench", "demo", *OPTIONS, *bad, "--out", tmp_path / "bad")
        assert (code, message in stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The checkpoint is right on")
def test_finetune_shows_the_checkpoint_before_and_after(tmp_path: Path) -> None:
    short = ["--set", "finetune.epochs=4", "--set", "finetune.views=2", "--set", "finetune.learning_rate=0.5"]
    assert invoke("train", "demo", *OPTIONS, "--set", "method=ce", "--out", tmp_path / "ce")[0] == 0
    code, stdout, stderr = invoke("finetune", tmp_path / "ce", *short, "--out", tmp_path / "tuned")
    assert code == 0, stderr
    rows = {line.split()[0]: line.split()[1:] for line in stdout.splitlines() if "checkpoint" in line or "fgr-" in line}
    assert rows.keys() == {"checkpoint", "fgr-finetuned"}
    assert rows["checkpoint"] != rows["fgr-finetuned"]
    record = json.loads((tmp_path / "tuned" / "record.json").read_text())
    assert record["config"]["finetuned_from"] == str(tmp_path / "ce")
    assert record["config"]["data"]["train"] == 160, "the run's own recipe, without --recipe"
    assert "checkpoint" in invoke("report", tmp_path / "tuned")[1], "before and after, on the page too"
    assert "checkpoint" in (tmp_path / "tuned" / "report.html").read_text()
    assert "finished earlier" in invoke("finetune", tmp_path / "ce", *short, "--out", tmp_path / "tuned", "--resume")[1]
    # The same weights as a bare file need a recipe, and give the same result.
    weights = tmp_path / "ce" / "model.safetensors"
    code, _, stderr = invoke("finetune", weights, "--out", tmp_path / "none")
    assert code == 2
    assert "`recipe` should be given, since a file does not tell its data and model" in stderr
    own = [*OPTIONS[:6], *OPTIONS[-2:]]
    words = ["finetune", weights, "--recipe", "demo", *own, *short, "--out", tmp_path / "file"]
    assert invoke(*words)[0] == 0
    other = json.loads((tmp_path / "file" / "record.json").read_text())
    assert other["evaluation"]["clean"] == record["evaluation"]["clean"]
    words = ["finetune", tmp_path / "ce", *short, "--set", "method=rect-only", "--out", tmp_path / "other"]
    assert invoke(*words)[0] == 0
    assert json.loads((tmp_path / "other" / "record.json").read_text())["method"] == "rect-only-finetuned"
    for word, said in (
        ("train.epochs=2", "finetune.epochs, which counts where the classifier alone is trained"),
        ("gamma.fgr=1", "finetune.gamma, which counts"),
        ("train.schedule=constant", "finetune.schedule, which counts where the classifier alone is trained"),
        ("train.warmup=0.1", "without train.warmup, which is 0.0 where the classifier alone is trained"),
    ):
        code, _, stderr = invoke("finetune", tmp_path / "ce", "--set", word, "--out", tmp_path / "none")
        assert (code, said in stderr) == (2, True), stderr
    code, _, stderr = invoke("finetune", tmp_path / "missing", "--out", tmp_path / "none")
    assert (code, "CHECKPOINT` should be the directory of a run, or a file" in stderr) == (2, True)


def test_weights_that_do_not_fit_leave_nothing_behind(tmp_path: Path) -> None:
    words = ["train", "demo", *OPTIONS, "--weights", tmp_path / "missing.pt", "--out", tmp_path / "run"]
    code, _, stderr = invoke(*words)
    assert (code, "`weights` should be a file" in stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_keys_that_decide_speed_alone_may_change_and_old_configs_go_on(grid_of_one: Path) -> None:
    out, options = grid_of_one / "ce-0", [*OPTIONS, "--set", "method=ce"]
    for word in ("engine.capture=off", "engine.compile=off", "data.workers=1"):
        code, stdout, stderr = invoke("train", "demo", *options, "--set", word, "--out", out, "--resume")
        assert (code, "finished earlier" in stdout) == (0, True), stderr
    assert invoke("train", "demo", *options, "--set", "engine.precision=bf16", "--out", out, "--resume")[0] == 2
    config = json.loads((out / "config.json").read_text())
    del config["engine"], config["finetune"], config["train"]["optimizer"]
    (out / "config.json").write_text(json.dumps(config))
    assert invoke("train", "demo", *options, "--out", out, "--resume")[0] == 0
    code, _, stderr = invoke("train", "demo", *options, "--set", "train.optimizer=adam", "--out", out, "--resume")
    assert (code, "another run has train.optimizer = sgd instead of adam" in stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The validation and test images were cut out of the training images")
def test_weights_and_holdout_are_options(tmp_path: Path) -> None:
    for seed, domain in enumerate(["a b", "c"]):
        write_class_folders(tmp_path / "domains" / domain, 2, 10, seed=seed)
    options = ["--set", "data.name=pacs", "--set", f"data.root={tmp_path / 'domains'}", "--set", "data.size=16"]
    options += ["--set", "train.epochs=1", "--set", "method=ce", "--set", "evaluation.corruptions=[]"]
    for key in ("train", "validation", "test"):
        options += ["--set", f"data.{key}={ {'train': 6000, 'validation': 1000, 'test': 2000}[key] }"]
    code, _, stderr = invoke("train", "demo", *options, "--holdout", "a b", "--out", tmp_path / "one")
    assert code == 0, stderr
    record = json.loads((tmp_path / "one" / "record.json").read_text())
    assert [row["shift"] for row in record["evaluation"]["shifts"]] == ["a b"]
    weights = tmp_path / "one" / "model.safetensors"
    words = ["train", "demo", *options, "--holdout", "c", "--weights", weights, "--out", tmp_path / "two"]
    assert invoke(*words)[0] == 0
    assert json.loads((tmp_path / "two" / "config.json").read_text())["train"]["weights"] == str(weights)
    options = [word.replace("train.epochs", "finetune.epochs") for word in options]
    words = ["finetune", weights, "--recipe", "demo", *options, "--holdout", "c"]
    assert invoke(*words, "--out", tmp_path / "tuned")[0] == 0
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["data"]["holdout"] == "c"
    (tmp_path / "domains").rename(tmp_path / "moved")
    code, _, stderr = invoke("eval", tmp_path / "one")
    assert (code, "--data FOLDER says where it is now" in stderr) == (2, True)
    code, _, stderr = invoke("eval", tmp_path / "one", "--data", tmp_path / "typo")
    assert (code, "`data.root` should be a folder that exists" in stderr) == (2, True)
    code, _, stderr = invoke("eval", tmp_path / "one", "--data", tmp_path / "moved")
    assert code == 0, stderr
    again = json.loads((tmp_path / "one" / "record.json").read_text())
    assert numbers(again["evaluation"]["clean"]) == pytest.approx(numbers(record["evaluation"]["clean"]), abs=1e-6)
    assert again["config"] == record["config"]
    (tmp_path / "moved").rename(tmp_path / "domains")
    code, _, stderr = invoke("train", "demo", *options, "--holdout", "d", "--out", tmp_path / "three")
    assert (code, "`data.holdout` should be one of a b, c" in stderr) == (2, True)


@pytest.mark.slow
def test_demo_writes_its_report_and_keeps_finished_runs(tmp_path: Path) -> None:
    code, stdout, stderr = invoke("demo", *OPTIONS, "--out", tmp_path / "demo")
    assert code == 0, stderr
    assert "ce  epoch 2/2" in stdout
    assert (tmp_path / "demo" / "report.html").is_file()
    assert "| dfl+views |" in (tmp_path / "demo" / "table.md").read_text()
    code, stdout, _ = invoke("demo", *OPTIONS, "--out", tmp_path / "demo")
    assert code == 0
    assert "epoch" not in stdout
    code, _, stderr = invoke("eval", tmp_path / "demo")
    assert code == 0, stderr
    code, _, stderr = invoke("report", tmp_path / "demo", "--out", tmp_path / "elsewhere")
    assert code == 0, stderr
    assert (tmp_path / "elsewhere" / "table.md").read_text() == (tmp_path / "demo" / "table.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["train", "demoo", "--out", "X"],
            "Found `recipe = 'demoo'`. Did you mean 'demo'?",
        ),
        (["train", "demo", "--set", "method=frg", "--out", "X"], "Did you mean 'fgr'?"),
        (["train", "demo", "--set", "train.epoch=1", "--out", "X"], "Did you mean 'train.epochs'?"),
        (["train", "demo", "--set", "train.model=smal", "--out", "X"], "Did you mean 'small'?"),
        (["train", "demo", "--set", "data.name=shape", "--out", "X"], "Did you mean 'shapes'?"),
        (["train", "demo", "--set", "data.train=3", "--out", "X"], "`train` should be at least 8"),
        (["train", "demo", "--set", "evaluation.corruptions=['fogg']", "--out", "X"], "`evaluation.corruptions` sh"),
        (["train", "demo", "--set", "evaluation.constants=cifar10", "--out", "X"], "Did you mean 'cifar'?"),
        (["report", "X"], "Parameter `directory` should be the directory of a run"),
        (["eval", "X"], "Parameter `directory` should be the directory of a run"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(words: list[str], message: str, tmp_path: Path) -> None:
    code, _, stderr = invoke(*[str(tmp_path / "X") if word == "X" else word for word in words])
    assert code == 2
    assert message in stderr
    assert stderr.count("\n") == 1
    assert not (tmp_path / "X").exists()


def test_a_directory_with_another_run_is_left_as_it_was(grid_of_one: Path) -> None:
    out = grid_of_one / "ce-0"
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    code, _, stderr = invoke("train", "demo", *OPTIONS, "--set", "method=fgr", "--out", out, "--resume")
    assert code == 2
    assert "where another run has method = ce instead of fgr" in stderr
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_an_unfinished_run_cannot_be_evaluated(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code, _, stderr = invoke("eval", tmp_path)
    assert code == 2
    assert "`directory` should be a finished run" in stderr


def test_demo_does_not_mix_with_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    code, stdout, stderr = invoke("demo", *OPTIONS, "--out", tmp_path)
    assert (code, stdout) == (2, "")
    assert "`out` should be new, or hold nothing but these runs and their report. Found" in stderr
    assert "with thesis.tex" in stderr
    (tmp_path / "thesis.tex").unlink()
    (tmp_path / "fgr" / "checkpoints" / "epoch-0001").mkdir(parents=True)
    (tmp_path / "fgr" / "config.json").write_text('{"method": "dfl"}')
    code, stdout, stderr = invoke("demo", *OPTIONS, "--out", tmp_path)
    assert (code, stdout) == (2, ""), "nothing is trained before everything is checked"
    assert [p.name for p in tmp_path.iterdir()] == ["fgr"]
    assert "which the demo chooses" in invoke("demo", "--set", "method=dfl", "--out", tmp_path)[2]


def test_an_output_without_unicode_loses_signs_and_nothing_else() -> None:
    """The help has an ellipsis, which ASCII does not."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    found = shiftcal("audit", "--help", env=environment)
    assert found.returncode == 0, found.stderr
    assert "--predictions" in found.stdout
    assert "?" in found.stdout


@pytest.mark.parametrize("place", ["/proc/shiftcal", "a file"])
def test_a_place_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    out = tmp_path / "file" / "run" if place == "a file" else Path(place)
    if place == "/proc/shiftcal" and not Path("/proc").is_dir():
        pytest.skip("no /proc here")
    code, _, stderr = invoke("train", "demo", *OPTIONS, "--out", out)
    assert code in (1, 2)
    assert "Parameter `out` should be" in stderr
    assert stderr.count("\n") == 1
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(grid_of_one: Path) -> None:
    # The real thing without a real full disk: no file of this process may grow beyond 100 kB, less than a checkpoint.
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    out, options = grid_of_one / "ce-0", [*OPTIONS, "--set", "method=ce"]
    (out / "record.json").unlink()
    before = {p: p.read_bytes() for p in (out / "checkpoints").rglob("*") if p.is_file()}
    again = shiftcal("train", "demo", *options, "--out", out, "--resume", preexec_fn=limit)
    assert again.returncode == 1
    assert again.stderr.startswith("Parameter `out` should be a directory with room that can be written. Found")
    assert again.stderr.count("\n") == 1
    assert {p: p.read_bytes() for p in (out / "checkpoints").rglob("*") if p.is_file()} == before
    assert not list(out.glob(".*")), "no half-written file is left"


def _listen_to_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


OTHERS = [pytest.param(*pair, marks=pytest.mark.slow) for pair in ((signal.SIGTERM, 143), (signal.SIGHUP, 129))]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), *OTHERS])
def test_ctrl_c_says_where_the_checkpoint_is_and_resume_goes_on(number: int, code: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "demo", *OPTIONS, "--set", "train.epochs=200", "--out", str(out)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "shiftcal", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Where the tests run in the background SIGINT is ignored, and a child would inherit that.
        preexec_fn=_listen_to_ctrl_c,
    )
    deadline = time.monotonic() + 120
    while len(list(out.glob("checkpoints/epoch-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    try:
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert stderr.startswith("Stopped. Last checkpoint: ")
    named = Path(stderr.removeprefix("Stopped. Last checkpoint: ").split(". Continue with: ")[0])
    assert (named / "model.safetensors").is_file()
    assert named == max(out.glob("checkpoints/epoch-*")), "it names the last one"
    assert "--set train.epochs=200 " in stderr
    assert f"--out {out} --resume" in stderr
    assert stderr.count("\n") == 1


@pytest.mark.slow
def test_warnings_are_for_the_user(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = shiftcal("train", "demo", *OPTIONS, "--out", out, "--resume")
    assert f"There is nothing to resume in {out}: the run starts from the beginning." in first.stdout
    (out / "record.json").unlink()
    weights = max(out.glob("checkpoints/epoch-*")) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    again = shiftcal("train", "demo", *OPTIONS, "--out", out, "--resume")
    assert again.returncode == 0, again.stderr
    assert again.stderr.startswith("Warning: ")
    assert "epoch-0001 is tried instead." in again.stderr
    assert again.stderr.count("\n") == 1
    assert "nothing to resume" not in again.stdout


LOST = [("record.json", 40), ("model.safetensors", None)]
LOST += [
    pytest.param(*reversed(pair), marks=pytest.mark.slow) for pair in ((None, "record.json"), (40, "model.safetensors"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "keep"), LOST)
def test_what_a_finished_run_lost_is_made_again(file: str, keep: int | None, grid_of_one: Path) -> None:
    out = grid_of_one
    words = ["bench", "demo", *OPTIONS, "--methods", "ce", "--out", out]
    lost = out / "ce-0" / file
    whole, weights = lost.read_bytes(), (out / "ce-0" / "model.safetensors").read_bytes()
    lost.unlink()
    if keep:
        lost.write_bytes(whole[:keep])
    said = pytest.warns(UserWarning, match=f"{lost} is .*damaged. It is made again from the last checkpoint")
    with said if keep or "model" in file else nullcontext():
        code, stdout, stderr = invoke(*words)
    assert code == 0, stderr
    assert "epoch" not in stdout, "nothing is trained again"
    assert (out / "ce-0" / "model.safetensors").read_bytes() == weights
    assert json.loads((out / "ce-0" / "record.json").read_text())["evaluation"]
    assert invoke("eval", out)[0] == 0


def test_a_damaged_record_is_named_with_the_way_to_make_it_again(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"method": "ce", ')
    code, _, stderr = invoke("report", tmp_path)
    assert code == 2
    assert f"{tmp_path / 'record.json'}" in stderr
    assert stderr.endswith("The command that made the run makes it again, with --resume.\n")


@pytest.mark.slow
def test_one_run_that_blows_up_does_not_stop_the_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = grid.complete

    def complete(config: Config, out: Path, **options: Any) -> Any:
        train = config.train.model_copy(update={"learning_rate": 1e30 if out.name == "ce-0" else 0.05})
        return real(config.model_copy(update={"train": train}), out, **options)

    monkeypatch.setattr(grid, "complete", complete)
    words = ["bench", "demo", *OPTIONS, "--methods", "ce,dfl", "--seeds", "0,1", "--out", tmp_path]
    with pytest.warns(UserWarning, match=r"Left out, 1 of 4 runs: ce-0: not finished\."):
        code, stdout, stderr = invoke(*words)
    assert code == 1
    assert stderr.startswith("1 of 4 runs did not finish. ce-0: The gradient of method 'ce' was not finite")
    assert stderr.count("\n") == 1
    assert {path.parent.name for path in tmp_path.glob("*/record.json")} == {"ce-1", "dfl-0", "dfl-1"}
    assert "dfl-1, run 4 of 4" in stdout
    assert "| dfl | " in stdout
    assert (tmp_path / "report.html").is_file()


def test_a_neighbours_damaged_record_is_found_before_anything_is_trained(grid_of_one: Path) -> None:
    (grid_of_one / "ce-0" / "record.json").write_text("{")
    code, _, stderr = invoke("bench", "demo", *OPTIONS, "--methods", "dfl", "--out", grid_of_one)
    assert (code, str(grid_of_one / "ce-0" / "record.json") in stderr) == (2, True), stderr
    assert not (grid_of_one / "dfl-0").exists()


def test_evaluation_is_as_the_config_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    made = load_records(RESULTS / "demo" / "runs")[0].evaluation
    monkeypatch.setattr(run_setup, "evaluate", lambda *_, **options: seen.update(options) or made)
    values = {"bins": 7, "temperatures": ("clean",), "temperature_criterion": "ece", "corruptions": ("fog",)}
    values |= {"constants": "imagenet", "frost": "somewhere", "corrupted": "elsewhere", "batch_size": 3}
    assert {*values, "also", "every", "validate_every", "noise"} == set(EvaluationSettings.model_fields), (
        "which weights are evaluated, and when, is none of its options"
    )
    assert all(value != EvaluationSettings.model_fields[name].default for name, value in values.items())
    config = load_config("demo").model_copy(update={"evaluation": EvaluationSettings(**values)})
    dataset = load_dataset(load_config("demo", TINY))
    run_setup.evaluate_with(config, torch.nn.Identity(), dataset, dataset.preprocess, progress=False)
    assert seen == values | {"preprocess": dataset.preprocess, "progress": False, "histograms": True, "earlier": None}


@pytest.mark.slow
def test_where_all_runs_blow_up_there_is_no_table(tmp_path: Path) -> None:
    words = ["bench", "demo", *OPTIONS, "--methods", "ce,dfl", "--set", "train.learning_rate=1e30", "--out", tmp_path]
    code, _, stderr = invoke(*words)
    assert code == 1
    assert stderr.startswith("2 of 2 runs did not finish. ce-0: ")
    assert not (tmp_path / "report.html").exists()
    code, _, stderr = invoke("bench", "demo", *OPTIONS, "--methods", "ce,dfl", "--out", tmp_path)
    assert code == 0, "there was nothing that another learning rate could not replace"


@pytest.mark.slow
def test_training_goes_on_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "shiftcal", "train", "demo", *OPTIONS, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    assert stderr.startswith("Standard output cannot be written, the work continues without it: ")
    assert stderr.count("\n") == 1
    assert (tmp_path / "run" / "record.json").is_file()


@pytest.mark.slow
def test_two_processes_do_not_train_in_one_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["train", "demo", *OPTIONS, "--set", "train.epochs=200", "--out", str(out)]
    first = subprocess.Popen([sys.executable, "-m", "shiftcal", *words], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline()
        second = shiftcal(*words, "--resume")
        assert second.returncode == 2
        expected = "Parameter `out` should be a directory that nobody else is using. "
        assert second.stderr.startswith(f"{expected}Found `out = {out}, in use by process {first.pid} on ")
        assert second.stderr.count("\n") == 1
    finally:
        first.kill()
        first.communicate()


def test_a_run_that_blows_up_is_one_line(tmp_path: Path) -> None:
    code, _, stderr = invoke("train", "demo", *OPTIONS, "--set", "train.learning_rate=1e30", "--out", tmp_path / "run")
    assert code == 1
    assert "was not finite at step" in stderr
    assert "There is no checkpoint yet." in stderr


def test_a_stopped_fine_tuning_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shiftcal.experiments.run.complete", stop)
    (tmp_path / "w.pt").write_bytes(b"x")
    code, _, stderr = invoke("finetune", tmp_path / "w.pt", "--recipe", "demo", "--out", tmp_path / "o")
    assert code == 130
    assert f"shiftcal finetune {tmp_path / 'w.pt'} --recipe demo --out {tmp_path / 'o'} --resume" in stderr


def test_errors_of_other_code_have_their_type_and_can_be_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ValueError("too many values to unpack (expected 2)")

    monkeypatch.setattr("shiftcal.experiments.run.complete", failing)
    words = ["train", "demo", *OPTIONS, "--out", tmp_path / "run"]
    code, _, stderr = invoke(*words)
    assert (code, stderr) == (
        2,
        "ValueError: too many values to unpack (expected 2) (SHIFTCAL_TRACEBACK=1 shows where.)\n",
    )
    monkeypatch.setenv("SHIFTCAL_TRACEBACK", "1")
    result = CliRunner().invoke(app, list(map(str, words)))
    assert isinstance(result.exception, ValueError)


def test_an_exit_is_no_other_ranks_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, stdout, stderr = invoke("gate", RESULTS / "audits" / "ce", "--max-ece", "0.9")
    assert (code, "passed" in stdout, stderr) == (0, True, "")
