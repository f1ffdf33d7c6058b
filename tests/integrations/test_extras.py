"""An extra that is not installed is named; each is blocked, as if it were absent."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXTRAS = {
    "torchvision": "torchvision",
    "torchmetrics": "torchmetrics",
    "lightning": "lightning.pytorch",
    "transformers": "transformers",
    "accelerate": "accelerate",
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_missing_extra_is_named(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTRAS[extra], None)
    for name in [name for name in sys.modules if name.startswith("shiftcal.integrations.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        ImportError, match=rf"integrations\.{extra} needs the extra `{extra}`: pip .*shiftcal\[{extra}\]"
    ):
        importlib.import_module(f"shiftcal.integrations.{extra}")


def test_a_torchvision_for_another_torch_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "torchvision":
                raise RuntimeError("operator torchvision::nms does not exist")

    for name in [n for n in sys.modules if n.split(".")[0] == "torchvision" or n.startswith("shiftcal.integrations.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Fails(), *sys.meta_path])
    with pytest.raises(ImportError, match=r"shiftcal\[torchvision\].*operator torchvision::nms does not exist"):
        importlib.import_module("shiftcal.integrations.torchvision")


@pytest.mark.parametrize("extra", EXTRAS)
def test_every_extra_is_declared_and_tested(extra: str) -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras[extra]
    assert set(extras[extra]) <= set(extras["dev"])
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"\n{extra}==" in pinned
