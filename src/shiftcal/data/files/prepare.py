"""Putting data sets where they are found: downloaded, unpacked from an archive, or linked to where they are."""

from __future__ import annotations

import shutil
from pathlib import Path

from shiftcal import data
from shiftcal._errors import unknown, wrong
from shiftcal.data.dataset import Dataset
from shiftcal.data.files.download import REMOTES, download, unpack
from shiftcal.data.split import FileSplit

EMBEDDED = ("shapes",)
_LAYOUTS = {
    "cifar10": "cifar-10-batches-py, or train/ and test/ with a folder for each class",
    "cifar100": "cifar-100-python, or train/ and test/ with a folder for each class",
    "tiny-imagenet": "tiny-imagenet-200 with train/ and val/val_annotations.txt",
    "camelyon17": "camelyon17_v1.0 of WILDS, extracted",
    "iwildcam": "iwildcam_v2.0 of WILDS, extracted",
    "fmow": "fmow_v1.1 of WILDS, extracted",
    "office-home": "a folder for each domain with a folder for each class",
    "pacs": "a folder for each domain with a folder for each class",
}


def prepare(name: str, source: Path | None = None, *, max_bytes: int | None = None, progress: bool = True) -> Dataset:
    """Put a data set into the folder of all data sets, once it was read and is all right, and return it.

    Of sets that do not fit into memory the files are listed, not read.
    A folder is linked to, not copied; an archive is unpacked, `max_bytes` of it at most; without a source the published
    archive is downloaded, for those that have one.
    """
    if name not in data.DATASETS:
        raise unknown("name", name, data.DATASETS)
    if name in EMBEDDED + data.BY_PATH:
        raise wrong("name", f"one of {', '.join(_LAYOUTS)}, which are looked for by name", name)
    root = data.home() / name
    if source is not None and root.exists():
        raise wrong("from", f"left out, or {root} removed before", f"{source}, while {name} is there already")
    if source is None and not root.exists():
        source = _fetch(name, progress)
    if source is None:
        return read(name, root, progress=progress)
    if source.is_dir():
        made = read(name, source, progress=progress)
        root.parent.mkdir(parents=True, exist_ok=True)
        root.symlink_to(source.resolve(), target_is_directory=True)
    elif source.is_file():
        made = _unpacked(name, source, root, max_bytes, progress)
    else:
        raise wrong("from", "a folder or an archive", str(source))
    return read(name, root, progress=progress) if isinstance(made.train, FileSplit) else made  # where files are now


def _unpacked(name: str, archive: Path, root: Path, max_bytes: int | None, progress: bool) -> Dataset:
    """Unpack an archive beside its place, and rename it when it turned out to be the data set."""
    beside = root.with_name(f".{root.name}.unpacked.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        unpack(archive, beside, max_bytes)
        made = read(name, beside, progress=progress)
        beside.rename(root)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return made


def read(name: str, root: Path, *, progress: bool) -> Dataset:
    """Load a data set; of domains, the first is held out."""
    options: dict[str, object] = {}
    if "holdout" in data.options_of(name):
        domains = sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
        options = {"holdout": domains[0] if domains else None, "size": 32}
    return data.load(name, root=root, progress=progress, **options)


def state(name: str) -> str:
    """Tell in a few words where a data set is or how to get it."""
    if name in EMBEDDED:
        return "embedded"
    if name in data.BY_PATH:
        more = " --holdout DOMAIN, with a folder for each domain" if name == "domains" else ""
        return f"any folder of images: --set data.root=FOLDER{more}"
    root = data.home() / name
    if root.exists():
        return f"ready at {root}"
    if name in REMOTES:
        return f"shiftcal data prepare {name}   (or --from an archive or folder)"
    return f"shiftcal data prepare {name} --from FOLDER   ({_LAYOUTS.get(name, 'its files')})"


def _fetch(name: str, progress: bool) -> Path:
    if name not in REMOTES:
        raise wrong(
            "from", f"a folder with {name} ({_LAYOUTS.get(name, 'its files')}), which cannot be downloaded", "nothing"
        )
    archive = data.home() / "archives" / REMOTES[name].name
    download(REMOTES[name], archive, progress=progress)
    return archive
