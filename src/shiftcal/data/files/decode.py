"""Decoding image files in worker processes, for sets that do not fit into memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils import data as torch_data

from shiftcal._errors import DataError, WorkerError
from shiftcal._machine import cores
from shiftcal.data.files.images import Fit, try_image, unreadable_among
from shiftcal.data.files.unreadable import check_unreadable, name_unreadable, too_many

_MOST_WORKERS = 16
ONE_SIZE = "of one size (data.size brings them to one)"


def two_sizes(images: Sequence[Tensor]) -> str | None:
    """Name two sizes that images have; None where all have one."""
    shapes = sorted({tuple(image.shape) for image in images})
    return f"{list(shapes[0])} and {list(shapes[1])}" if len(shapes) > 1 else None


@dataclass
class Decoder:
    """Reads the images of a set by their index; keeps count of those that cannot be read.

    Unreadable images are left out and named once, if they are fewer than one in a hundred; more are an error that
    lists all.
    """

    files: Sequence[Path]
    size: int | None
    fit: Fit
    workers: int | None = None

    def __post_init__(self) -> None:
        self._failures: dict[int, str] = {}

    def batches(
        self, indices: Iterable[Tensor], *, pin: bool = False
    ) -> Iterator[tuple[Int[Tensor, " read"], UInt8[Tensor, "read 3 height width"]]]:
        """Yield for each batch of indices those that could be read and their images, decoded ahead by the workers."""
        workers = default_workers() if self.workers is None else self.workers
        source: torch_data.DataLoader[Any] = torch_data.DataLoader(
            _Files(self.files, self.size, self.fit),
            batch_sampler=_Lists(indices),
            num_workers=workers,
            collate_fn=_collate,
            pin_memory=pin,
        )
        for index, images, failures in _while_workers_live(source):
            for place, failure in failures.items():
                self._note(place, failure)
            if isinstance(images, str):
                raise DataError("images", ONE_SIZE, images)
            if len(index):
                yield index, images

    def _note(self, place: int, failure: str) -> None:
        if place in self._failures:
            return
        self._failures[place] = failure
        if too_many(len(self._failures), len(self.files)):  # the rest is looked at too, so that all can be listed
            known = dict.fromkeys([*self._failures.values(), *unreadable_among(self.files, self.size, self.fit)])
            check_unreadable(sorted(known), len(self.files))
        name_unreadable(failure, len(self._failures), len(self.files))


def _while_workers_live(source: Iterable[Any]) -> Iterator[Any]:
    try:
        yield from source
    except (ConnectionError, EOFError) as error:  # in the middle of handing a batch over
        with suppress(RuntimeError):
            time.sleep(0.2)  # torch raises from its handler of the signal, too
        raise WorkerError(str(error) or type(error).__name__) from None
    except RuntimeError as error:
        raise WorkerError.told_by(error) or error from None


def default_workers() -> int:
    """Return how many worker processes decode: one for each core this process may use, up to sixteen."""
    return min(cores(), _MOST_WORKERS)


class _Files(torch_data.Dataset[Any]):
    def __init__(self, files: Sequence[Path], size: int | None, fit: Fit) -> None:
        self.files, self.size, self.fit = files, size, fit

    def __getitem__(self, place: int) -> tuple[int, Any]:
        return place, try_image(self.size, self.fit, self.files[place])


class _Lists(torch_data.Sampler[list[int]]):
    """Batches of indices, made as they are asked for: there may be no end of them."""

    def __init__(self, indices: Iterable[Tensor]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[list[int]]:
        return (index.tolist() for index in self.indices)


def _collate(items: list[tuple[int, Any]]) -> tuple[Tensor, Tensor | str, dict[int, str]]:
    failures = {place: image for place, image in items if isinstance(image, str)}
    index = torch.tensor([place for place, image in items if not isinstance(image, str)], dtype=torch.int64)
    images = [image for _, image in items if not isinstance(image, str)]
    if sizes := two_sizes(images):
        return index, sizes, failures
    batch = torch.stack(images) if images else torch.empty(0)
    if torch_data.get_worker_info() is not None:
        batch.share_memory_()  # here its failure is told; in torch's own thread the main process would wait for ever
    return index, batch, failures
