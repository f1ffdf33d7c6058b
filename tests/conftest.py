"""Set-up of all tests: shapes checked at run time, one thread per worker, images to work with."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch: waiting threads hardly spin

import jaxtyping
import pytest
import torch

# Before the first import of the package: jaxtyping's annotations are checked at every call, under pytest only.
sys.path.insert(0, str(Path(__file__).parent))
from made_images import make_natural_images

# torchvision without compiled operators for this build of torch fails on import, and timm with it, unless the operators
# are at least declared. Nothing calls them.
TORCHVISION = torch.library.Library("torchvision", "DEF")
if not hasattr(torch.ops.torchvision, "nms"):
    for operator in ("nms", "qnms"):
        TORCHVISION.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

collect_ignore = ["torchvision_stub"]  # for processes that tests start
HOOK = jaxtyping.install_import_hook("shiftcal", "runtime_types.checker")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the annotations' checks off, so that a user's bad input reaches the package's own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def untyped() -> SimpleNamespace:
    """Import the package a second time as users do, without the checks of annotations, which cannot be traced."""
    global HOOK
    checked = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "shiftcal"}
    HOOK.uninstall()
    names = ("losses", "metrics", "calibrators", "augment", "gradients")
    modules = {name: importlib.import_module(f"shiftcal.{name}") for name in names}
    plain = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "shiftcal"}
    sys.modules.update(checked)
    HOOK = jaxtyping.install_import_hook("shiftcal", "runtime_types.checker")
    return SimpleNamespace(**modules, plain=plain)


@pytest.fixture(scope="session")
def natural_images() -> torch.Tensor:
    """200 images with statistics of small photographs: a steep spectrum, and channels that vary mostly together."""
    return make_natural_images(200, 32, 32)


@pytest.fixture(scope="session")
def odd_images() -> torch.Tensor:
    """Images whose sides are no multiple of 8 or 16."""
    return make_natural_images(20, 27, 45)


@pytest.fixture(scope="session")
def even_images() -> torch.Tensor:
    """Images of even sides that are no multiple of 8 or 16."""
    return make_natural_images(40, 28, 44)
