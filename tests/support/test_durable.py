"""Writes are atomic: a file is the old or the new one, and is flushed before it is renamed."""

import os

import pytest

from nystromformer_jax.support.durable import read_json, write_bytes
from tests.helpers import files_of_at_most


def test_writes_one_file_that_everyone_may_read(tmp_path):
    write_bytes(tmp_path / "a.tsv", b"one")
    write_bytes(tmp_path / "a.tsv", b"two\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tsv"]
    assert (tmp_path / "a.tsv").read_bytes() == b"two\n"
    assert (tmp_path / "a.tsv").stat().st_mode & 0o777 == 0o644


def test_a_full_disk_keeps_the_old_file(tmp_path):
    write_bytes(tmp_path / "a.tsv", b"old")
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        write_bytes(tmp_path / "a.tsv", bytes(101))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_content_is_flushed_before_the_rename_and_the_folder_after(tmp_path, monkeypatch):
    seen, fsync = [], os.fsync

    def spy(descriptor):
        seen.append((os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "a.tsv").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    write_bytes(tmp_path / "a.tsv", b"content")
    (temporary, named), (folder, renamed) = seen
    assert temporary.startswith(f"{tmp_path}/.a.tsv.")
    assert (named, renamed) == (False, True)
    assert folder == str(tmp_path)


def test_reads_only_json_objects(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"a": [1, null]}')
    assert read_json(file) == {"a": [1, None]}
    for content in (b'{"a": ', b"\xff", b"[" * 10**5, b"[1]"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=str(file)):
            read_json(file)
