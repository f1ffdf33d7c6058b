"""Files into a split: into memory where they fit, else decoded while training."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from shiftcal._errors import unknown, wrong
from shiftcal.data.files.images import Fit, check_fit, first_size, read_images
from shiftcal.data.split import FileSplit, ImageSplit, MemorySplit

Loader = Literal["auto", "memory", "stream"]
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_SHARE = 8  # a set goes into memory if it takes less than an eighth of it: D_mix is a copy, and there are several sets


def read_split(
    files: Sequence[Path],
    targets: Sequence[int],
    *,
    size: int | None = None,
    fit: Fit = "crop",
    loader: Loader = "auto",
    title: str = "read",
    progress: bool = True,
) -> ImageSplit:
    """Read files into memory, or keep their names and decode them while training if they are too many.

    Of those read, the classes of the readable ones are kept, see `read_images`.
    """
    if loader not in ("auto", "memory", "stream"):
        raise unknown("data.loader", loader, ("auto", "memory", "stream"))
    check_fit(size, fit)
    if not files:
        raise wrong("images", "at least one", "none")
    if loader == "stream" or (loader == "auto" and not fits_memory(files, size)):
        return FileSplit(tuple(files), torch.tensor(targets), size, fit)
    images, readable = read_images(files, size=size, fit=fit, title=title, progress=progress)
    return MemorySplit(images, torch.tensor(targets)[readable])


def fits_memory(files: Sequence[Path], size: int | None) -> bool:
    """Tell whether images are few and small enough to be kept in memory; without `size`, the first tells theirs."""
    height, width = (size, size) if size is not None else first_size(files)
    return len(files) * 3 * height * width <= memory_limit()


def memory_limit() -> int:
    """Return how many bytes a set may have to be kept in memory: an eighth of the host's and of the GPU's."""
    device = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else host_memory()
    return min(host_memory(), device) // _SHARE


def host_memory() -> int:
    """Return the bytes of memory that the machine has or this process may use, or 8 GB where that is not told."""
    if not hasattr(os, "sysconf"):
        return 8 * 10**9
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:  # of a container or a batch job
        text = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        whole = min(whole, int(text)) if text.isdigit() else whole
    return whole
