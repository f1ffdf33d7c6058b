"""Fetching data sets, against a real HTTP server on this machine."""

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from shiftcal.data.files.download import REMOTES, Remote, download, unpack

CONTENT = np.random.default_rng(0).bytes(3_000_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Server(ThreadingHTTPServer):
    """Serve CONTENT, with byte ranges; `cut` bytes into an answer the connection breaks, as often as `cuts` says."""

    cut, cuts, ranges = 1_000_000, 0, True
    requests: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.headers.get("Range"))
        if self.path == "/missing":
            self.send_error(404)
            return
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            body = body[: self.server.cut]
        self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        made.requests = []
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def url(server: Server, name: str = "set.tar.gz") -> str:
    return f"http://127.0.0.1:{server.server_port}/{name}"


def test_a_file_is_fetched_whole_and_once(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "new" / "set.tar.gz"
    for _ in range(2):
        download(Remote(url(server), MD5), target, progress=False)
    assert target.read_bytes() == CONTENT
    assert server.requests == [None]
    assert [p.name for p in target.parent.iterdir()] == ["set.tar.gz"]


def test_a_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts, target = 2, tmp_path / "set.tar.gz"
    for have in (1_000_000, 2_000_000):
        with pytest.raises(OSError, match=rf"could not be fetched: .*put it at {target}"):
            download(Remote(url(server), MD5), target, progress=False)
        assert not target.exists()
        assert (tmp_path / ".set.tar.gz.part").stat().st_size == have
    download(Remote(url(server), MD5), target, progress=False)
    assert target.read_bytes() == CONTENT
    assert server.requests == [None, "bytes=1000000-", "bytes=2000000-"]


def test_a_server_without_ranges_begins_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / ".set.tar.gz.part").write_bytes(CONTENT[:5000])
    download(Remote(url(server), MD5), tmp_path / "set.tar.gz", progress=False)
    assert (tmp_path / "set.tar.gz").read_bytes() == CONTENT


def test_a_part_that_is_whole_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".set.tar.gz.part").write_bytes(CONTENT)
    download(Remote(url(server), MD5), tmp_path / "set.tar.gz", progress=False)
    assert (tmp_path / "set.tar.gz").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"`file` should be the published one, with MD5 {'0' * 32}. Found .*{MD5}"):
        download(Remote(url(server), "0" * 32), tmp_path / "set.tar.gz", progress=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "set.tar.gz").write_bytes(b"something else")
    with pytest.raises(ValueError, match="`file` should be the published one"):
        download(Remote(url(server), MD5), tmp_path / "set.tar.gz", progress=False)
    assert (tmp_path / "set.tar.gz").read_bytes() == b"something else", "a user's file is not removed"


def test_no_network_says_what_to_fetch_and_where_to_put_it(server: Server, tmp_path: Path) -> None:
    for address in (url(server, "missing"), "http://127.0.0.1:9/set.tar.gz"):
        with pytest.raises(OSError, match=rf"{address} could not be fetched: .*put it at {tmp_path / 'set.tar.gz'}"):
            download(Remote(address, MD5), tmp_path / "set.tar.gz", progress=False)


def test_the_published_files_have_names_and_checksums() -> None:
    assert {name: remote.name for name, remote in REMOTES.items()} == {
        "cifar10": "cifar-10-python.tar.gz",
        "cifar100": "cifar-100-python.tar.gz",
        "tiny-imagenet": "tiny-imagenet-200.zip",
    }
    assert all(len(remote.md5) == 32 for remote in REMOTES.values())


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for info, content in members:
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return path


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_archives_are_unpacked_all_or_nothing(tmp_path: Path) -> None:
    good = tar(tmp_path / "good.tar.gz", (tarfile.TarInfo("set/a.txt"), b"a"), (tarfile.TarInfo("set/b/c.txt"), b"c"))
    unpack(good, tmp_path / "out")
    assert (tmp_path / "out" / "set" / "b" / "c.txt").read_bytes() == b"c"
    with zipfile.ZipFile(tmp_path / "good.zip", "w") as file:
        file.writestr("set/a.txt", "a")
    unpack(tmp_path / "good.zip", tmp_path / "zipped")
    assert (tmp_path / "zipped" / "set" / "a.txt").read_text() == "a"
    (tmp_path / "cut.tar.gz").write_bytes(good.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"`archive` should be a whole .tar.gz or .zip"):
        unpack(tmp_path / "cut.tar.gz", tmp_path / "cut")
    assert not (tmp_path / "cut").exists()


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/evil.txt", "set/../../evil.txt", "C:\\evil.txt", "..\\evil.txt"])
def test_members_that_would_land_elsewhere_are_refused(name: str, tmp_path: Path) -> None:
    tar(tmp_path / "bad.tar.gz", (tarfile.TarInfo("set/a.txt"), b"a"), (tarfile.TarInfo(name), b"evil"))
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr(name, "evil")
    for archive in ("bad.tar.gz", "bad.zip"):
        with pytest.raises(ValueError, match="`archive` should be one whose members stay in its folder"):
            unpack(tmp_path / archive, tmp_path / "deep" / "out")
    assert not list(tmp_path.rglob("evil.txt"))
    assert not (tmp_path / "deep" / "out").exists()


def test_links_are_refused(tmp_path: Path) -> None:
    tar(tmp_path / "bad.tar.gz", (link("set/inside", "/etc"), b""))
    with pytest.raises(ValueError, match="`archive` should be one of files and folders alone"):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "out")
