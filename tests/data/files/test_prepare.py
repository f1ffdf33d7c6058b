import hashlib
import tarfile
from pathlib import Path

import pytest
from stand_ins import Cifar, write_class_folders
from typer.testing import CliRunner

from shiftcal import data
from shiftcal.cli import app
from shiftcal.data.files import download
from shiftcal.data.files.download import Remote


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    return result.exit_code, result.output.replace("\n", " ")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHIFTCAL_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_folder_is_linked_and_an_archive_unpacked(tmp_path: Path, home: Path) -> None:
    cifar = Cifar(tmp_path, fine=False)
    for source in (cifar.tree, cifar.folder.parent, cifar.archive):
        code, output = run("prepare", "cifar10", "--from", source)
        assert code == 0, output
        assert "180 training, 20 validation and 40 test images of 10 classes, [3, 32, 32]" in output
        assert (home / "cifar10").is_symlink() == source.is_dir()
        assert len(data.load("cifar10").test) == 40
        assert "ready at" in run("list")[1]
        assert run("prepare", "cifar10")[0] == 0, "what is there is read again"
        code, output = run("prepare", "cifar10", "--from", source)
        assert code == 2
        assert "cifar10 is there already" in output
        if source.is_dir():
            (home / "cifar10").unlink()


def test_what_is_not_the_data_set_is_not_kept(tmp_path: Path, home: Path) -> None:
    (tmp_path / "other").mkdir()
    code, output = run("prepare", "cifar10", "--from", tmp_path / "other")
    assert code == 2
    assert "`data.root` should be a folder with cifar-10-batches-py" in output
    assert not (home / "cifar10").exists()
    assert run("prepare", "cifar10", "--from", tmp_path / "missing")[1].startswith(
        "Parameter `from` should be a folder"
    )


def test_a_download_is_unpacked_and_read(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar = Cifar(tmp_path, fine=True)
    content = cifar.archive.read_bytes()
    remote = Remote(cifar.archive.as_uri(), hashlib.md5(content, usedforsecurity=False).hexdigest())
    monkeypatch.setitem(download.REMOTES, "cifar100", remote)
    assert "shiftcal data prepare cifar100" in run("list")[1]
    code, output = run("prepare", "cifar100")
    assert code == 0, output
    assert (home / "cifar100" / "cifar-100-python" / "train").is_file()
    assert (home / "archives" / cifar.archive.name).is_file()
    monkeypatch.setitem(download.REMOTES, "cifar10", Remote("http://127.0.0.1:9/cifar-10-python.tar.gz", "0" * 32))
    code, output = run("prepare", "cifar10")
    assert code == 1
    assert "could not be fetched" in output
    assert str(home / "archives" / "cifar-10-python.tar.gz") in output.replace(" ", "")


def test_domains_need_a_source(tmp_path: Path) -> None:
    code, output = run("prepare", "pacs")
    assert code == 2
    assert "`from` should be a folder with pacs (a folder for each domain" in output
    for domain in ("art", "photo"):
        write_class_folders(tmp_path / "pacs" / domain, 2, 20)
    code, output = run("prepare", "pacs", "--from", tmp_path / "pacs")
    assert code == 0, output


def test_names() -> None:
    code, output = run("list")
    assert code == 0
    assert all(name in output for name in data.DATASETS)
    assert "Did you mean 'cifar10'?" in run("prepare", "cifar-10")[1]
    for name in ("shapes", "folder"):
        assert "`name` should be one of cifar10" in run("prepare", name)[1]


def test_a_malicious_archive_is_refused(tmp_path: Path, home: Path) -> None:
    (tmp_path / "a").write_text("x")
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "a", "../../evil")
    code, output = run("prepare", "cifar10", "--from", tmp_path / "bad.tar.gz")
    assert code == 2
    assert "`archive` should be one whose members stay in its folder" in output
    assert not home.exists() or not list(home.iterdir())
