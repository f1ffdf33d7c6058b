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
    names = ("losses", "metrics", "calibrators", "augment", "rectification")
    modules = {name: importlib.import_module(f"shiftcal.{name}") for name in names}
    for name in [name for name in sys.modules if name.split(".")[0] == "shiftcal"]:
        del sys.modules[name]
    sys.modules.update(checked)
    HOOK = jaxtyping.install_import_hook("shiftcal", "runtime_types.checker")
    return SimpleNamespace(**modules)


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


def make_natural_images(count: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    fy, fx = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)
    # CIFAR-10's amplitudes fall as f^-1.45 up to half the highest frequency, then faster.
    amplitude = torch.hypot(fy, fx).clamp_min(1 / max(height, width)) ** -1.5
    noise = torch.randn(count, 4, height, width, generator=generator)
    planes = torch.fft.irfft2(torch.fft.rfft2(noise) * amplitude, s=(height, width))
    planes = planes / planes.std((2, 3), keepdim=True)
    images = 120 + 45 * planes[:, :1] + 15 * planes[:, 1:]
    return images.clamp(0, 255).to(torch.uint8)
