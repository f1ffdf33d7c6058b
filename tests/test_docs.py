"""Every fenced block of the documents runs, or says why not; the site builds without a warning. Slow."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image

import shiftcal
from shiftcal import gradients, losses, models
from shiftcal.data.sources.shapes import shapes

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("bash", "python")
SHOWN = ("text", "json", "toml", "yaml", "latex", "markdown")
_FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
BIN = Path(sys.executable).parent
THEIR_CODE = """
from shiftcal import models


def make(num_classes):
    return models.build("small", num_classes)
"""


class Block(NamedTuple):
    kind: str
    code: str
    reason: str | None


def blocks_of(document: Path) -> list[Block]:
    found = _FENCE.finditer(document.read_text(encoding="utf-8"))
    return [Block(match["kind"], match["code"], match["reason"]) for match in found]


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_block_says_what_it_is(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    blocks = blocks_of(document)
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(blocks)
    assert {block.kind for block in blocks} <= {*RUN, *SHOWN}
    assert all(block.reason is None or block.kind in RUN for block in blocks)


def shiftcal_command(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    paths = [str(BIN), os.environ["PATH"]]
    libraries = [str(ROOT / "src"), str(ROOT / "tests" / "torchvision_stub")]
    environment = os.environ | {"PATH": ":".join(paths), "PYTHONPATH": ":".join(libraries), "OMP_NUM_THREADS": "1"}
    command = ["bash", "-euo", "pipefail", "-c", line]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def photos(folder: Path, seed: int) -> None:
    data = shapes(seed=seed, train=96, validation=8, test=8)
    for number, (image, target) in enumerate(zip(data.train.images, data.train.targets.tolist(), strict=True)):
        place = folder / data.classes[target]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{number:03}.png")


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the documents speak of: images, a run, an audit, a checkpoint, an ONNX file, a table."""
    made = tmp_path_factory.mktemp("stage")
    photos(made / "photos", 0)
    photos(made / "new-hospital", 1)
    (made / "their_code.py").write_text(THEIR_CODE)
    short = "--set train.model=small --set data.size=32 --set train.epochs=2 --set train.weights=none"
    none = "--set 'evaluation.corruptions=[]' --set 'train.batch_size=32'"
    lines = [
        f"shiftcal train folder --set data.root=photos --set method=ce {short} {none} --out runs/mine",
        "cp -r runs/mine runs/cifar10-ce",
        "shiftcal export runs/mine --calibrator none --to model.onnx",
        "mkdir -p val/a moved && cp -r photos moved/photos && cp $(ls photos/*/*.png | head -2) val/a",
        "cp photos/$(ls photos | head -1)/$(ls photos/$(ls photos | head -1) | head -1) photo.jpg",
        "shiftcal predict runs/mine photos --out table.csv --all",
    ]
    for line in lines:
        done = shiftcal_command(made, line)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    model = models.build("small", len(list((made / "photos").iterdir())))
    models.load_weights(made / "runs/mine/model.safetensors", model)
    torch.save(model.state_dict(), made / "theirs.pt")
    make_arrays(made)
    return made


def make_arrays(made: Path) -> None:
    import numpy as np

    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.save(made / "test.npy", images)
    np.save(made / "labels.npy", np.arange(40) % 4)
    logits = np.random.default_rng(1).normal(size=(400, 3))
    head = "target,logits_0,logits_1,logits_2\n"
    rows = [f"{k % 3},{a:.4f},{b:.4f},{c:.4f}\n" for k, (a, b, c) in enumerate(logits)]
    (made / "predictions.csv").write_text(head + "".join(rows))


def losses_of(model: torch.nn.Module, images: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = model(images.float() / 128 - 1)
    return losses.dual_focal(logits, targets), losses.soft_ece(logits, targets)


def python_names() -> dict[str, Any]:
    """What a reader of a Python block has at hand: a model, an optimiser, batches and their losses."""
    torch.manual_seed(0)
    model = models.build("small", 10)
    targets = torch.arange(200) % 10
    images = torch.randint(0, 256, (200, 3, 32, 32), dtype=torch.uint8)
    main_loss, constraint_loss = losses_of(model, images, targets)
    names: dict[str, Any] = {"torch": torch, "shiftcal": shiftcal, "losses": losses, "model": model, "images": images}
    names |= {name: getattr(gradients, name) for name in ("rectified_backward", "GradientPair", "ConstraintMomentum")}
    names |= {"targets": targets, "main_loss": main_loss, "constraint_loss": constraint_loss}
    names |= {"optimizer": torch.optim.SGD(model.parameters(), 0.1), "normalise": lambda x: x.float() / 128 - 1}
    names |= {"loader": [(images.clone(), targets)] * 2, "micro_batches": [(images, targets)] * 2}
    names["test_loader"] = names["batches"] = [(images.float() / 128 - 1, targets)]
    names["both_losses"] = lambda images, targets: losses_of(model, images, targets)
    names |= {"scaler": torch.amp.GradScaler("cpu"), "logits": model(images.float() / 128 - 1)}
    names |= {"generator": torch.Generator().manual_seed(0), "probabilities": names["logits"].softmax(-1).detach()}
    names |= {"validation_logits": names["logits"].detach(), "test_logits": names["logits"].detach()}
    names |= {"test_probabilities": names["probabilities"], "test_targets": names["targets"]}
    return names | {"validation_targets": targets}


def run_lines(code: str, folder: Path) -> None:
    for line in code.splitlines():
        done = shiftcal_command(folder, line)
        allowed = (0, 1) if line.startswith("shiftcal gate") else (0,)
        assert done.returncode in allowed, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.fixture
def inside(stage: Path, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "stage"
    shutil.copytree(stage, folder)
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.mark.slow
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if any(b.kind in RUN for b in blocks_of(d))], ids=name_of)
def test_every_block_runs(document: Path, inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, in one folder; of Python blocks each begins anew with what `python_names` gives."""
    if document.name in ("README.md", "tutorial.md", "plugins.md"):  # they make their own
        shutil.rmtree(inside / "runs")
    for block in blocks_of(document):
        if block.kind not in RUN or block.reason is not None:
            continue
        if named := re.match(r"# (\w+\.py)\n", block.code):
            (inside / named[1]).write_text(block.code)
        elif block.kind == "python":
            exec(compile(block.code, document.name, "exec"), python_names())  # its own errors tell the line
        else:
            run_lines(block.code, inside)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "site" / "methods" / "fgr.html").read_text()
    assert "<math" in page, "formulas are drawn without a network"
    for built in (tmp_path / "site").rglob("*.html"):
        outside = re.findall(r'(?:src|href)="(https?://[^"]+)"', built.read_text(encoding="utf-8"))
        assert not [url for url in outside if url.endswith((".js", ".css", ".woff2"))], (
            "nothing is loaded from elsewhere"
        )


@pytest.mark.parametrize("name", ["make_api", "make_commands", "make_methods"])
def test_generated_documents_are_up_to_date(name: str) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if name != "make_methods":
        assert module.PATH.read_text(encoding="utf-8") == module.reference(), f"python docs/{name}.py renews it"
        return
    for page in module.PAGES.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert module.filled(text) == text, f"python docs/make_methods.py renews {page.name}"
