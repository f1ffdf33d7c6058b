"""How the ranks of a script leave their group: with no thread of it left.

Such a thread drops the tensors that it holds when it comes to it. Where that is at the interpreter's end, the process
is aborted after all its work is done.
"""

import gc
import time
from pathlib import Path

import torch.distributed.nn  # noqa: F401 (loaded after the group is made, its functions keep it as their default)
from torch import distributed as dist


def leave() -> None:
    """Leave the group together; what still holds it and is in use, as a global trainer, is an error."""
    dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    assert_nobody_is_left()


def assert_nobody_is_left(seconds: float = 10) -> None:
    """Wait for the threads that have ended but are still listed, and fail if there are others."""
    deadline = time.monotonic() + seconds
    while (names := _group_threads()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not names, f"{names} outlive their group and may abort the process at its end"


def _group_threads() -> list[str]:
    names = []
    for file in Path("/proc/self/task").glob("*/comm"):
        try:
            names.append(file.read_text().strip())
        except (FileNotFoundError, ProcessLookupError):  # ended between the two
            continue
    return [name for name in names if "gloo" in name]
