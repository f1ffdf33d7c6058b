"""Starts scripts as users do: in a process of its own, or with torchrun on two ranks."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
PATHS = (TESTS.parent / "src", TESTS / "torchvision_stub", TESTS, TESTS / "integrations")


def start(script: Path, *arguments: object, ranks: int = 1, timeout: float = 240) -> str:
    """Run a script and return what it printed."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    paths = [*map(str, PATHS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "default",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, *launcher, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
