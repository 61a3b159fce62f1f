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
    def write():
        if kind == "folder":
            return fakes.write_folder(tmp_path / "top", FILES)
        return fakes.write_archive(tmp_path / "top.tar.gz", FILES, "top/")

    path = write()
    changed = path / "a/2.txt" if kind == "folder" else path
    os.utime(changed, ns=(5, 5))
    before = raw_files(path).stamp()
    moved = path.rename(tmp_path / "elsewhere")
    if kind == "folder":
        assert raw_files(moved).stamp() == before
    moved.rename(path)
    assert raw_files(path).stamp() == before
    os.utime(changed, ns=(5, 6))
    assert raw_files(path).stamp() != before
    changed.write_bytes(changed.read_bytes() + b"!")
    os.utime(changed, ns=(5, 5))
    assert raw_files(path).stamp() != before


def test_stamp_changes_if_a_file_moves_to_another_subfolder(tmp_path):
    path = fakes.write_folder(tmp_path / "top", FILES)
    before = raw_files(path).stamp()
    (path / "a/2.txt").rename(path / "b/0.txt")  # where it stays the second of three
    assert raw_files(path).stamp() != before


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "no checksum"])
def test_rejects_a_corrupt_archive(tmp_path, damage):
    noise = {f"a/{i}.txt": os.urandom(5_000) for i in range(9)}
    path = fakes.write_archive(tmp_path / "top.tar.gz", noise, "top/")
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "flipped": content,
            "empty": b"",
            "text": b"<html>Not found</html>",
            "no checksum": content[:-8],
        }[damage]
    )
    with pytest.raises(ValueError, match=r"top\.tar\.gz is truncated or corrupt .* download it"):
        list(raw_files(path).read())


def test_rejects_an_archive_with_a_duplicate_file(tmp_path):
    both = {"top/a/1.txt": b"one", "other/top/a/1.txt": b"two"}
    path = fakes.write_archive(tmp_path / "top.tar.gz", both, "")
    with pytest.raises(ValueError, match=r"top\.tar\.gz contains a/1\.txt twice"):
        list(raw_files(path).read())


def test_an_unreadable_file_is_not_reported_as_a_full_cache(tmp_path):
    folder = fakes.write_folder(tmp_path / "top", FILES)
    (folder / "a/1.txt").unlink()
    (folder / "a/1.txt").symlink_to("1.txt")  # a loop
    with pytest.raises(OSError, match=r"1\.txt cannot be read \(") as caught:
        list(raw_files(folder).read())
    assert caught.value.errno is None


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
