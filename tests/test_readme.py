"""What the README and the results say is what the code does."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shiftcal import losses, models
from shiftcal.records import load_records
from shiftcal.report.table import markdown

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLACES = ("*.md", "docs/**/*.md", "examples/*.md", "benchmarks/*.md", "results/**/*.md")
DOCUMENTS = [str(path.relative_to(ROOT)) for place in PLACES for path in sorted(ROOT.glob(place))]


SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(("which", "length"), [(0, 12), (1, 11)])
def test_the_snippets_train(which: int, length: int) -> None:
    snippet = SNIPPETS[which]
    assert len([line for line in snippet.splitlines() if line.strip()]) == length
    torch.manual_seed(0)
    model = models.build("small", num_classes=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    targets = torch.arange(200) % 4
    images = (torch.rand(200, 3, 32, 32) * 100 + 30 * targets[:, None, None, None]).to(torch.uint8)
    loader = [(images[i::5].clone(), targets[i::5]) for i in range(5)] * 4

    def normalise(batch: torch.Tensor) -> torch.Tensor:
        return batch.float() / 128 - 1

    before = losses.cross_entropy(model(normalise(images)), targets).item()
    names = {"torch": torch, "model": model, "optimizer": optimizer, "loader": loader, "normalise": normalise}
    names["generator"] = torch.Generator().manual_seed(0)
    exec(compile(snippet, "README.md", "exec"), names)
    assert losses.cross_entropy(names["model"](normalise(images)), targets).item() < before


TINY = ["data.train=64", "data.validation=32", "data.test=32", "train.epochs=1", "evaluation.corruptions=[]"]


@pytest.mark.slow
@pytest.mark.parametrize("document", ["README.md", "docs/plugins.md"])
def test_the_plugin_is_trained_by_the_command_beside_it(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(# my_methods.py\n.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"^shiftcal (train demo --plugin my_methods .*)$", text, re.MULTILINE)
    (tmp_path / "my_methods.py").write_text(snippet)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    words = [*shlex.split(command), *(word for item in TINY for word in ("--set", item))]
    answer = subprocess.run([sys.executable, "-m", "shiftcal", *words], capture_output=True, text=True, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (record,) = load_records(tmp_path / "runs")
    assert (record.method, record.config["plugins"]) == ("poly1-fgr", ["my_methods"])


def test_the_reference_of_all_keys_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_configuration", ROOT / "docs" / "make_configuration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PATH.read_text(encoding="utf-8") == module.reference(), "python docs/make_configuration.py renews it"


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_two_commands_exist(command: str) -> None:
    assert command in README
    assert re.search(rf"^{command.removeprefix('make ')}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_pictures_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert ((ROOT / name).parent / target).exists(), target


def test_the_published_tables_are_made_from_the_published_records() -> None:
    five_seeds = markdown(load_records(ROOT / "results/demo/runs"))
    assert (ROOT / "results/demo/table.md").read_text(encoding="utf-8") == five_seeds
    assert five_seeds.rpartition("\n\n")[0] in (ROOT / "results/demo/README.md").read_text(encoding="utf-8")
    for name, records in (
        ("results/cifar10", "runs"),
        ("results/cifar10/before", "runs"),
        ("results/cifar10/seeds", "."),
        ("results/cifar100/seeds", "."),
    ):
        quick = markdown(load_records(ROOT / name / records))
        assert (ROOT / name / "table.md").read_text(encoding="utf-8") == quick
        assert quick.rpartition("\n\n")[0] in (ROOT / name / "README.md").read_text(encoding="utf-8")
    for name in ("results/cifar10/choice", "results/cifar100/choice"):
        assert (ROOT / name / "table.md").read_text(encoding="utf-8") == markdown(load_records(ROOT / name))
    demo = markdown(load_records(ROOT / "results/demo/demo"))
    assert demo.rpartition("\n\n")[0] in README
