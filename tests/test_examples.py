"""The examples run and print what they say."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "integrations"))
from starting import start

EXAMPLES = {  # each with what it prints
    "accelerate_loop.py": r"clean: accuracy .*, ECE .*\nshifted: accuracy .*, ECE .*",
    "hf_trainer.py": r"validation ECE .*\nclean: accuracy .*, ECE .*\nshifted: accuracy .*, ECE .*",
    "lightning_module.py": r"validation ECE .*\nclean: accuracy .*, ECE .*\nshifted: accuracy .*, ECE .*",
    "timm_loop.py": r"clean: accuracy .*, ECE .*\nshifted: accuracy .*, ECE .*",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str) -> None:
    printed = start(ROOT / "examples" / name, timeout=600)
    assert re.search(EXAMPLES[name], printed), printed


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short(name: str) -> None:
    assert len((ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()) < 80
