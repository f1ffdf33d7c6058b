"""CIFAR-10 and CIFAR-100, from whatever form of them is there.

The official archives (`cifar-10-python.tar.gz`, `cifar-10-binary.tar.gz`), the folders in them, or a tree of images
`train/<class>/*.png`, `test/<class>/*.png`.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shiftcal._errors import ParameterError, reason_of, wrong
from shiftcal.data.dataset import Dataset
from shiftcal.data.files.listing import find_images
from shiftcal.data.files.read import read_split
from shiftcal.data.hold_out import hold_out
from shiftcal.data.preprocessing import Preprocessing
from shiftcal.data.split import ImageSplit, MemorySplit

CIFAR = Preprocessing(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))


@dataclass(frozen=True)
class Form:
    """What the two data sets differ in: names of files and folders, and bytes before an image in the binary version."""

    name: str
    folders: tuple[str, str]  # of the Python and the binary version
    archives: tuple[str, str]
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: tuple[str, str, str]  # file and key of the class names in the Python version, file in the binary version
    key: str
    label_bytes: int


_CIFAR10 = Form(
    "cifar10",
    ("cifar-10-batches-py", "cifar-10-batches-bin"),
    ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
    tuple(f"data_batch_{k}" for k in range(1, 6)),
    ("test_batch",),
    ("batches.meta", "label_names", "batches.meta.txt"),
    "labels",
    1,
)
_CIFAR100 = Form(
    "cifar100",
    ("cifar-100-python", "cifar-100-binary"),
    ("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    ("train",),
    ("test",),
    ("meta", "fine_label_names", "fine_label_names.txt"),
    "fine_labels",
    2,
)


def cifar10(root: str | Path, *, seed: int = 0, progress: bool = True) -> Dataset:
    """Load CIFAR-10 (Krizhevsky, 2009); a tenth of the training images of each class is held out for validation."""
    return _load(_CIFAR10, Path(root), seed, progress)


def cifar100(root: str | Path, *, seed: int = 0, progress: bool = True) -> Dataset:
    """Load CIFAR-100 (Krizhevsky, 2009) with its fine classes; a tenth of each is held out for validation."""
    return _load(_CIFAR100, Path(root), seed, progress)


def _load(form: Form, root: Path, seed: int, progress: bool) -> Dataset:
    classes, train, test = _read(form, root, progress)
    held = hold_out(train.targets, share=0.1, seed=seed)
    return Dataset(
        name=form.name,
        classes=classes,
        preprocess=CIFAR,
        train=train.take(~held),
        validation=train.take(held),
        test=test,
        cut_from_train=("validation",),
    )


def _read(form: Form, root: Path, progress: bool) -> tuple[tuple[str, ...], ImageSplit, ImageSplit]:
    """Find a form of the data set in a folder, or take the folder or archive itself for one."""
    for reader, folder, archive in zip((_python, _binary), form.folders, form.archives, strict=True):
        for place in (root / folder, root):
            if place.is_dir() and _is_version(form, place, binary=reader is _binary):
                return _checked(partial(reader, form, partial(_file, place)), place)
        for place in (root / archive, root):
            if place.name == archive and place.is_file():
                return _checked(partial(reader, form, _members(place, folder)), place)
    if (root / "train").is_dir() and (root / "test").is_dir():
        return _tree(root, progress)
    expected = f"a folder with {form.folders[0]}, {form.archives[0]} (or the binary version), or train/ and test/"
    found = ", ".join(sorted(p.name for p in root.iterdir())[:8]) if root.is_dir() else "no such folder"
    raise wrong("data.root", expected, f"{root}: {found}")


def _checked(read: Callable[[], _Parts], place: Path) -> _Parts:
    """Read files that may hold anything."""
    try:
        return read()
    except ParameterError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise wrong("data.root", "that of a whole data set", f"{place}: {reason_of(error)}") from None


def _file(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise wrong("data.root", f"a folder with {name}", f"{folder}: {error}") from None


def _is_version(form: Form, folder: Path, *, binary: bool) -> bool:
    return (folder / f"{form.test[0]}{'.bin' if binary else ''}").is_file()


def _members(archive: Path, folder: str) -> Callable[[str], bytes]:
    """Read members of an archive by name, without extracting anything."""

    def read(name: str) -> bytes:
        try:
            with tarfile.open(archive) as tar:
                member = tar.extractfile(f"{folder}/{name}")
                return member.read() if member else b""
        except (tarfile.TarError, KeyError, EOFError, OSError) as error:
            raise wrong("data.root", f"a whole archive with {folder}/{name}", f"{archive}: {error}") from None

    return read


_Parts = tuple[tuple[str, ...], MemorySplit, MemorySplit]


class _ArraysOnly(pickle.Unpickler):
    """Unpickle arrays and plain data; anything else a pickle may name, such as a function to call, is refused."""

    _ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise wrong("pickle", "arrays and plain data alone", f"a reference to {module}.{name}")
        if (module, name) == ("_codecs", "encode"):
            return lambda text, encoding: text.encode(encoding)
        if name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        return getattr(np, name)


def unpickle(data: bytes) -> dict[str, Any]:
    """Read a pickled dictionary of arrays and plain data; keys become strings."""
    try:
        content = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    except ParameterError:
        raise
    except Exception as error:  # a damaged pickle raises nearly everything
        raise wrong("pickle", "whole", str(error) or type(error).__name__) from None
    if not isinstance(content, dict):
        raise wrong("pickle", "a dictionary", type(content).__name__)
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def _python(form: Form, read: Callable[[str], bytes]) -> tuple[tuple[str, ...], MemorySplit, MemorySplit]:
    names = unpickle(read(form.meta[0]))[form.meta[1]]
    classes = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)

    def split(files: tuple[str, ...]) -> MemorySplit:
        batches = [unpickle(read(name)) for name in files]
        labels = np.concatenate([np.asarray(batch[form.key]) for batch in batches])
        return _split(np.concatenate([batch["data"] for batch in batches]), labels, len(classes))

    return classes, split(form.train), split(form.test)


def _binary(form: Form, read: Callable[[str], bytes]) -> tuple[tuple[str, ...], MemorySplit, MemorySplit]:
    classes = tuple(read(form.meta[2]).decode().split())

    def rows(files: tuple[str, ...]) -> Iterator[Any]:
        for name in files:
            values = np.frombuffer(read(f"{name}.bin"), dtype=np.uint8)
            if values.size == 0 or values.size % (form.label_bytes + 3072):
                raise wrong("data.root", f"{name}.bin of whole images", f"{values.size} bytes")
            yield values.reshape(-1, form.label_bytes + 3072)

    def split(files: tuple[str, ...]) -> MemorySplit:
        values = np.concatenate(list(rows(files)))
        return _split(values[:, form.label_bytes :], values[:, form.label_bytes - 1], len(classes))

    return classes, split(form.train), split(form.test)


def _split(pixels: Any, labels: Any, classes: int) -> MemorySplit:
    if pixels.ndim != 2 or pixels.shape[1] != 3072 or len(pixels) != len(labels) or pixels.dtype != np.uint8:
        found = f"{pixels.dtype} {list(pixels.shape)} with {len(labels)} labels"
        raise wrong("data.root", "images of 3072 bytes with a label each", found)
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= classes:
        raise wrong(
            "data.root", f"labels in 0..{classes - 1}", f"labels up to {labels.max() if len(labels) else 'none'}"
        )
    images = torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy())
    return MemorySplit(images, torch.from_numpy(labels.astype(np.int64)))


def _tree(root: Path, progress: bool) -> tuple[tuple[str, ...], ImageSplit, ImageSplit]:
    train = find_images(root / "train")
    first, second = (
        read_split(tree.files, tree.targets, title=tree.root.name, progress=progress)
        for tree in (train, find_images(root / "test", train.classes))
    )
    return train.classes, first, second
