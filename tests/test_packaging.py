"""Wheel and sdist: what they hold, and that an installed wheel works on its own."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "shiftcal"
ASSETS = ROOT / "src" / "shiftcal" / "report" / "web" / "assets"
SIZES = ["data.train=64", "data.validation=32", "data.test=32", "train.epochs=1", "evaluation.corruptions=[]"]


def python(*words: str | Path, path: Path | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(path)} if path is not None else {}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd, timeout=600)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist, built by the declared backend, which is put beside them and nowhere else."""
    out = tmp_path_factory.mktemp("built")
    got = python("-m", "pip", "install", "--quiet", "--target", out / "backend", "hatchling>=1.27")
    if got.returncode:
        pytest.skip(f"hatchling is not to be had here: {got.stderr.strip().splitlines()[-1]}")
    made = python("-m", "hatchling", "build", "-d", out / "dist", path=out / "backend", cwd=ROOT)
    assert made.returncode == 0, made.stderr
    return out / "dist"


@pytest.mark.slow
def test_wheel_and_sdist_hold_the_package_and_what_it_reads(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    files = [path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(SOURCE.parent).as_posix() for path in files}
    assert {"shiftcal/py.typed", "shiftcal/recipes/demo.toml"} <= wanted
    assert {f"shiftcal/report/web/assets/{path.name}" for path in ASSETS.iterdir()} <= wanted
    assert wanted <= in_wheel
    assert {f"src/{name}" for name in wanted} | {"README.md", "LICENSE", "pyproject.toml"} <= in_sdist
    strangers = {name.split("/")[0] for name in in_wheel} - {"shiftcal", "shiftcal-0.1.0.dist-info"}
    assert not strangers


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing in it."""
    place = tmp_path_factory.mktemp("environment")
    made = python("-m", "venv", place)
    assert made.returncode == 0, made.stderr
    return place / ("Scripts" if os.name == "nt" else "bin")


def install(empty: Path, *words: str | Path) -> None:
    command = [empty / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
    got = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=900)
    if "No matching distribution" in got.stderr:
        pytest.skip(f"what shiftcal needs is not to be had here: {got.stderr.strip().splitlines()[-1]}")
    assert got.returncode == 0, got.stderr


@pytest.mark.slow
def test_wheel_and_sdist_work_in_an_empty_environment(built: Path, empty: Path, tmp_path: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def shiftcal(*words: str | Path) -> str:
        command = [str(empty / "shiftcal"), *map(str, words)]
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path, timeout=600
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    install(empty, "-c", ROOT / "constraints.txt", wheel)
    assert "audit" in shiftcal("--help")
    assert "quick-cifar10" in shiftcal("recipes")
    shiftcal("train", "demo", *(word for item in SIZES for word in ("--set", item)), "--out", tmp_path / "run")
    shiftcal("report", tmp_path / "run", "--out", tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    script = max(ASSETS.glob("*.js"), key=lambda path: path.stat().st_size).read_text(encoding="utf-8")
    assert script.strip().splitlines()[0][:40] in page, "the page has its scripts"
    install(empty, "--no-deps", "--force-reinstall", sdist)
    assert "shiftcal 0." in shiftcal("--version")


@pytest.mark.slow
def test_a_users_program_is_checked_strictly(tmp_path: Path) -> None:
    """The types of the package are complete: a strict check of a program that uses it finds nothing."""
    pytest.importorskip("mypy")
    answer = python(
        *("-m", "mypy", "--strict", "--python-version", "3.11", "--cache-dir", tmp_path / "cache"),
        *("--disable-error-code", "no-untyped-call", "--follow-imports", "silent"),
        *(ROOT / "examples" / name for name in ("own_loop.py", "my_methods.py")),
        path=ROOT / "src",
        cwd=tmp_path,
    )
    assert answer.returncode == 0, answer.stdout
