"""Listing images on disk: trees of class folders, and folders laid out in any way."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from shiftcal._errors import DataError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
# Pictures that are known, and not read.
_OTHERS = (".gif", ".jfif", ".jpe", ".avif", ".heic", ".heif", ".jp2", ".pgm", ".pbm", ".tga", ".ico", ".psd", ".svg")


@dataclass(frozen=True)
class Tree:
    """The images below class folders, `<root>/<class>/…/<file>`, in order of class and name."""

    root: Path
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    targets: tuple[int, ...]


def find_images(root: Path, classes: tuple[str, ...] | None = None) -> Tree:
    """List the images of a tree; with `classes`, folders of other names are left out and none may be missing.

    Images may lie deeper than their class folder, as Tiny-ImageNet's do in `<class>/images`.
    """
    try:
        return _found_images(root, classes)
    except (OSError, RecursionError) as error:  # paths that are too long or too deep
        raise DataError("folder", "a folder whose paths can be listed", f"{root}: {error}") from None


def _found_images(root: Path, classes: tuple[str, ...] | None) -> Tree:
    if not root.is_dir():
        raise DataError("folder", "a folder with one folder of images for each class", f"{root}{_what_it_is(root)}")
    shown = [path for path in root.iterdir() if not path.name.startswith(".")]
    found = tuple(sorted(path.name for path in shown if path.is_dir()))
    _check_names(root, found)
    if beside := sum(path.suffix.lower() in EXTENSIONS and path.is_file() for path in shown):
        warnings.warn(f"{beside} images beside the class folders of {root} are left out.", stacklevel=4)
    missing = sorted(set(classes or ()) - set(found))
    if missing:
        raise DataError(
            "folder", f"one with a folder for each of {len(classes or ())} classes", f"{root}, without {missing[0]}"
        )
    classes = classes or found
    files, targets, other = [], [], list[Path]()
    for target, name in enumerate(classes):
        below = list(_shown_below(root / name))
        other += [path for path in below if path.suffix.lower() in _OTHERS]
        of_class = sorted(path for path in below if path.suffix.lower() in EXTENSIONS)
        files += of_class
        targets += [target] * len(of_class)
    if not files:
        raise DataError("folder", f"one with images of these formats: {_listed()}", f"{root}, without images")
    _check_names(root, map(str, files))
    _warn_of_others(other)
    return Tree(root, classes, tuple(files), tuple(targets))


def list_images(root: Path) -> tuple[Path, ...]:
    """List all images below a folder, however it is laid out, in order of their paths; what is hidden is left out."""
    if not root.is_dir():
        raise DataError("folder", "a folder of images", str(root))
    try:
        shown = [path.relative_to(root) for path in _shown_below(root)]
        files = tuple(root / path for path in sorted(shown) if path.suffix.lower() in EXTENSIONS)
    except (OSError, RecursionError) as error:  # paths that are too long or too deep
        raise DataError("folder", "a folder whose paths can be listed", f"{root}: {error}") from None
    if not files:
        raise DataError("folder", f"a folder of images ({_listed()})", f"{root}, without images")
    _check_names(root, map(str, files))
    _warn_of_others([path for path in shown if path.suffix.lower() in _OTHERS])
    return files


def _shown_below(root: Path) -> Iterator[Path]:
    """List the files below a folder, also behind links, but none that is hidden; one that cannot be read is an error.

    What several links lead to is listed once.
    """

    def refuse(error: OSError) -> NoReturn:
        raise error

    seen = set()
    for place, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name[0] != ".")
        for name in files:
            path = Path(place, name)
            if name[0] != "." and (path.is_file() or (path.is_symlink() and not path.exists())):
                yield path  # a link that leads nowhere is an image that cannot be read


def _check_names(root: Path, names: Iterable[str]) -> None:
    """Raise on a name that tables and records cannot hold; what is above the root is not looked at."""
    above = str(root)
    for name in names:
        below = name.removeprefix(above)
        try:
            below.encode()
        except UnicodeEncodeError:
            expected = "one whose names are UTF-8 (rename it; LC_ALL=C.UTF-8 in a container)"
            found = f"{below.strip(os.sep).encode(errors='surrogateescape')!r} in {root}"
            raise DataError("folder", expected, found) from None


def _listed() -> str:
    return ", ".join(EXTENSIONS)


def _what_it_is(path: Path) -> str:
    return ", which is a file" if path.exists() else ", which does not exist"


def _warn_of_others(files: Sequence[Path]) -> None:
    """Warn of pictures of formats that are not read, which would be missing without a word."""
    if files:
        kinds = Counter(file.suffix.lower() for file in files)
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        warnings.warn(f"Pictures of other formats are left out: {counts}. Those of {_listed()} are read.", stacklevel=4)
