"""Fetching and unpacking data sets: resumed, verified, and never half there."""

from __future__ import annotations

import errno
import hashlib
import lzma
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shiftcal._errors import DownloadError, wrong
from shiftcal._progress import Progress

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Remote:
    """A file of a data set: where it is published, and its MD5 as published."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]


REMOTES = {
    "cifar10": Remote("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    "cifar100": Remote("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
    "tiny-imagenet": Remote("https://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
}


def download(remote: Remote, path: Path, *, progress: bool = True) -> None:
    """Fetch a file unless it is there, resuming what an earlier attempt left; it is checked before it is renamed.

    The part fetched so far is kept as `.<name>.part` when the connection breaks, and removed when the whole file turns
    out to be another one.
    """
    if path.is_file():
        _check_sum(path, remote.md5, path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    try:
        _fetch(remote.url, part, progress)
    except OSError as error:
        advice = f"The same command resumes the download; or fetch the file by other means and put it at {path}."
        raise DownloadError(remote.url, str(error), advice) from None
    try:
        _check_sum(part, remote.md5, remote.url)
    except ValueError:
        part.unlink()
        raise
    part.replace(path)


def _fetch(url: str, part: Path, progress: bool) -> None:
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 (ours)
    try:
        response = urllib.request.urlopen(request, timeout=60)  # noqa: S310 (see above)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing is left to fetch
            return
        raise
    with response:
        if have and response.status != 206:  # the server begins again
            have = 0
        expected = have + int(response.headers.get("Content-Length") or 0)
        with (
            part.open("ab" if have else "wb") as file,
            Progress(part.name[1:-5], expected, done=have, enabled=progress) as bar,
        ):
            while block := response.read(_BLOCK):
                file.write(block)
                bar.advance(len(block))
    if part.stat().st_size < expected:
        raise ConnectionError(f"the connection was cut after {part.stat().st_size} of {expected} bytes")


def _check_sum(path: Path, md5: str, shown: object) -> None:
    hasher = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
    if hasher.hexdigest() != md5:
        raise wrong("file", f"the published one, with MD5 {md5}", f"{shown}, with {hasher.hexdigest()}")


def unpack(archive: Path, folder: Path, limit: int | None = None) -> None:
    """Extract a .tar.gz or .zip into a new folder, all or nothing; a member that would land elsewhere is refused.

    So is an archive of which more than `limit` bytes would come, by default ten times its size and 1 GB: images do not
    compress that well.
    """
    limit = 10 * archive.stat().st_size + 10**9 if limit is None else limit
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        if zipfile.is_zipfile(archive):
            _unzip(archive, temporary, limit)
        else:
            _untar(archive, temporary, limit)
        temporary.rename(folder)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _unzip(archive: Path, folder: Path, limit: int) -> None:
    try:
        with zipfile.ZipFile(archive) as file:
            for name in file.namelist():
                _check_member(archive, name)
            _check_size(archive, sum(member.file_size for member in file.infolist()), limit)
            file.extractall(folder)  # noqa: S202 (members were checked)
    except _DAMAGE as error:
        raise _unreadable(archive, error) from None


def _untar(archive: Path, folder: Path, limit: int) -> None:
    try:
        with tarfile.open(archive) as file:
            size = 0
            for member in file:
                size += member.size
                _check_size(archive, size, limit)
                _check_member(archive, member.name)
                if not (member.isfile() or member.isdir()):
                    raise wrong("archive", "one of files and folders alone", f"{archive} with the link {member.name}")
            file.extractall(folder, filter="data")
    except _DAMAGE as error:
        raise _unreadable(archive, error) from None


# What damaged, encrypted, oddly compressed and very deep archives raise.
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    RuntimeError,  # and with it RecursionError and NotImplementedError
)


def _unreadable(archive: Path, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return error  # which is not the archive's fault
    reason = str(error).partition("\n")[0].rstrip(":") or type(error).__name__
    return wrong("archive", "a whole .tar.gz or .zip, not encrypted", f"{archive}: {reason[:200]}")


def _check_size(archive: Path, size: int, limit: int) -> None:
    if size > limit:
        expected = f"one of at most {limit / 1e9:.1f} GB (--max-gigabytes allows more)"
        raise wrong("archive", expected, f"{archive}, of which {size / 1e9:.1f} GB would come")


def _check_member(archive: Path, name: str) -> None:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts and ":" in path.parts[0]):
        raise wrong("archive", "one whose members stay in its folder", f"{archive} with {name!r}")
