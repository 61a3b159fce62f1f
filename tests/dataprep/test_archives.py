import gzip
import os
import tarfile

import pytest

from dataprep import archives
from dataprep.archives import RawFiles
from tests.lra.data import fakes

FILES = {"a/1.txt": b"one", "a/2.txt": b"two", "b/1.txt": b"three"}
OTHERS = dict.fromkeys(("a/3.md", "c/1.txt", "a/deep/1.txt", "1.txt", "other-top/a/9.txt"), b"?")


def raw_files(path):
    return RawFiles(path, "top", ("a/", "b/"), r"\d\.txt")


@pytest.mark.parametrize("prefix", ["top/", "./top/", "/top/", "../../elsewhere/top/", "x/top/"])
def test_an_archive_reads_like_its_unpacked_folder(tmp_path, prefix):
    everything = {**OTHERS, **FILES}
    folder = raw_files(fakes.write_folder(tmp_path / "top", everything))
    archive = raw_files(fakes.write_archive(tmp_path / "top.tar.gz", everything, prefix))
    assert dict(folder.read()) == dict(archive.read()) == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["top", "top.tar.gz"]


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_stamp_depends_only_on_the_files(tmp_path, kind):
    if kind == "folder":
        path = fakes.write_folder(tmp_path / "top", FILES)
        changed = path / "a/2.txt"
    else:
        changed = path = fakes.write_archive(tmp_path / "top.tar.gz", FILES, "top/")
    os.utime(changed, ns=(5, 5))
    before = raw_files(path).stamp()
    os.utime(changed, ns=(5, 6))
    assert raw_files(path).stamp() != before
    changed.write_bytes(changed.read_bytes() + b"!")
    os.utime(changed, ns=(5, 5))
    assert raw_files(path).stamp() != before
    changed.write_bytes(changed.read_bytes()[:-1])
    os.utime(changed, ns=(5, 5))
    assert raw_files(path).stamp() == before
    if kind == "folder":
        path = path.rename(tmp_path / "elsewhere")
        assert raw_files(path).stamp() == before
        (path / "a/2.txt").rename(path / "b/0.txt")  # where it stays the second of three
        assert raw_files(path).stamp() != before


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "no checksum", "duplicate"])
def test_rejects_a_corrupt_archive(tmp_path, damage):
    noise = {f"a/{i}.txt": os.urandom(5_000) for i in range(9)}
    path = fakes.write_archive(tmp_path / "top.tar.gz", noise, "top/")
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "cut": content[:middle],
            "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "empty": b"",
            "text": b"<html>Not found</html>",
            "no checksum": content[:-8],
        }.get(damage, content)
    )
    if damage == "duplicate":
        both = {"top/a/1.txt": b"one", "other/top/a/1.txt": b"two"}
        fakes.write_archive(path, both, "")
    with pytest.raises(ValueError, match=r"top\.tar\.gz (is truncated or corrupt|.* twice)"):
        list(raw_files(path).read())


@pytest.mark.parametrize("where", ["wanted", "other", "behind", "header"])
def test_rejects_an_archive_that_unpacks_to_too_many_bytes(tmp_path, monkeypatch, where):
    monkeypatch.setattr(archives, "MAX_BYTES", 20_000)
    zeros = bytes(20_001)
    contents = {"wanted": {"a/1.txt": zeros}, "other": {"a/1.txt": b"1", "c/1.txt": zeros}}
    path = fakes.write_archive(tmp_path / "top.tar.gz", contents.get(where, FILES), "top/")
    if where == "behind":
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + zeros))
    if where == "header":
        with tarfile.open(path, "w:gz", pax_headers={"comment": "0" * 20_001}) as archive:
            archive.addfile(tarfile.TarInfo("top/a/1.txt"))
    assert path.stat().st_size < 2_000
    with pytest.raises(ValueError, match="unpacks to more than"):
        dict(raw_files(path).read())
    monkeypatch.setattr(archives, "MAX_BYTES", 50_000)
    assert dict(raw_files(path).read())
