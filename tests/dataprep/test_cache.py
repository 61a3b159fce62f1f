import errno
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

import lra
from dataprep import cache
from tests.helpers import data_folders

FINGERPRINT = {"seed": 3, "sizes": {"train": 5}}
DEV_FULL = pathlib.Path("/dev/full")

# A process that builds FINGERPRINT, prints "building", and waits for a line before it finishes.
BUILDER = f"""
import sys
import numpy as np
from dataprep import cache

def build(folder):
    cache.save_array(folder / "half.npy", np.arange(5))
    print("building", flush=True)
    sys.stdin.readline()
    cache.save_array(folder / "whole.npy", np.arange(7))

print(cache.prepared("demo", {FINGERPRINT!r}, build).sha256, flush=True)
"""


def build(folder):
    cache.save_array(folder / "half.npy", np.arange(5))
    cache.save_array(folder / "whole.npy", np.arange(7))


def never_build(folder):
    raise AssertionError(f"{folder} was to be found, not built")


def start_builder():
    return subprocess.Popen(
        [sys.executable, "-c", BUILDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=pathlib.Path(lra.__file__).parents[1],
    )


def test_data_are_built_once_and_reused():
    first = cache.prepared("demo", FINGERPRINT, build)
    assert cache.prepared("demo", FINGERPRINT, never_build) == first
    np.testing.assert_array_equal(cache.open_array(first.folder / "whole.npy"), np.arange(7))


def test_folders_depend_on_the_fingerprint_and_hashes_on_the_files():
    def build_others(folder):
        build(folder)
        cache.save_array(folder / "whole.npy", np.arange(1, 8))

    first = cache.prepared("demo", FINGERPRINT, build)
    second = cache.prepared("demo", {**FINGERPRINT, "seed": 4}, build)
    assert first.folder != second.folder
    assert first.sha256 == second.sha256
    assert cache.prepared("demo", {"seed": 5}, build_others).sha256 != first.sha256


def test_files_are_flushed_before_the_rename_and_the_folder_after(monkeypatch):
    seen, fsync = [], os.fsync
    folder = cache.folder_of("demo", FINGERPRINT)

    def spy(descriptor):
        seen.append((os.readlink(f"/proc/self/fd/{descriptor}"), folder.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    cache.prepared("demo", FINGERPRINT, lambda folder: (folder / "a.txt").write_bytes(b"content"))
    *files, last = seen
    partial = f"{folder}.partial"
    paths = (f"{partial}/a.txt", f"{partial}/manifest.json", partial)
    assert sorted(files) == sorted((path, False) for path in paths)
    assert files[-1] == (partial, False)
    assert last == (str(folder.parent), True)


def flip_last_byte(path, *, keep_time=False):
    stat = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_detects_a_flipped_byte_and_names_the_file():
    flip_last_byte(cache.prepared("demo", FINGERPRINT, build).folder / "whole.npy")
    with pytest.raises(ValueError, match=r"whole\.npy was modified.*Delete the folder"):
        cache.prepared("demo", FINGERPRINT, build)


@pytest.mark.parametrize("keep_time", [False, True])
def test_large_files_are_hashed_if_modified_or_requested(monkeypatch, keep_time):
    hashed, original = [], cache.sha256_of
    folder = cache.prepared("demo", FINGERPRINT, build).folder
    monkeypatch.setattr(cache, "sha256_of", lambda path: hashed.append(path) or original(path))
    cache._verify(folder, FINGERPRINT, always_hashed_bytes=0)
    assert hashed == []
    flip_last_byte(folder / "whole.npy", keep_time=keep_time)
    if not keep_time:
        with pytest.raises(ValueError, match=r"whole\.npy was modified"):
            cache._verify(folder, FINGERPRINT, always_hashed_bytes=0)
    with pytest.raises(ValueError, match=r"whole\.npy was modified"):
        cache.check(folder)


def test_pieces_are_saved_as_one_array(tmp_path):
    array = np.arange(7 * 3, dtype=np.uint8).reshape(7, 3)
    with cache.array_file(tmp_path / "pieces.npy", (7, 3), np.uint8) as append:
        for row in range(0, 7, 2):
            append(array[row : row + 2])
    np.save(tmp_path / "whole.npy", array)
    assert (tmp_path / "pieces.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.parametrize(
    "array",
    [np.float32(3.5), np.zeros((0, 5), np.int32), np.arange(5)[::-2], np.arange(6).reshape(2, 3).T],
)
def test_arrays_are_saved_as_by_numpy(tmp_path, array):
    cache.save_array(tmp_path / "ours.npy", np.asarray(array))
    np.save(tmp_path / "numpys.npy", np.ascontiguousarray(array).reshape(np.shape(array)))
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpys.npy").read_bytes()


@pytest.mark.parametrize("piece", [np.zeros(3, np.int64), np.zeros(10, np.int32)])
def test_rejects_pieces_of_the_wrong_shape_or_dtype(tmp_path, piece):
    with (
        pytest.raises(AssertionError, match=r"array\.npy (needs 40 bytes|holds int64)"),
        cache.array_file(tmp_path / "array.npy", (5,), np.int64) as append,
    ):
        append(piece)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("half.npy", None, r"lack the file .*half\.npy"),
        (cache.MANIFEST, None, r"lack manifest\.json"),
        *(
            (cache.MANIFEST, content, r"manifest\.json .* is corrupt")
            for content in ("", "{", "[]", "{}", '{"files": {"half.npy": 1}}')
        ),
        (cache.MANIFEST, '{"files": {}, "fingerprint": {}}', "does not match"),
    ],
)
def test_a_missing_file_or_a_corrupt_manifest_is_named(name, content, word):
    folder = cache.prepared("demo", FINGERPRINT, build).folder
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=rf"{word}.*Delete the folder"):
        cache.prepared("demo", FINGERPRINT, build)


def test_a_manifest_without_sizes_is_verified_by_hashes():
    folder = cache.prepared("demo", FINGERPRINT, build).folder
    manifest = json.loads((folder / cache.MANIFEST).read_text())
    for entry in manifest["files"].values():
        del entry["bytes"]
    size = sum(path.stat().st_size for path in folder.glob("*.npy"))
    assert cache.check(folder) == size
    (folder / cache.MANIFEST).write_text(json.dumps(manifest))
    assert cache.check(folder) == size


def keep_pieces_then(error):
    """Returns a build that writes one piece, then raises `error` if given."""

    def build_in_pieces(folder):
        pieces = cache.pieces_of(cache.folder_of("demo", FINGERPRINT))
        pieces.mkdir(exist_ok=True)
        (pieces / "0").write_text("finished")
        build(folder)
        if error:
            raise error

    return build_in_pieces


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), ChildProcessError("died")])
def test_pieces_of_a_stopped_build_are_kept_until_it_is_finished(error):
    with pytest.raises(type(error)):
        cache.prepared("demo", FINGERPRINT, keep_pieces_then(error))
    folder = cache.folder_of("demo", FINGERPRINT)
    assert data_folders() == [f"{folder.name}.pieces"]
    assert (cache.pieces_of(folder) / "0").read_text() == "finished"

    prepared = cache.prepared("demo", FINGERPRINT, keep_pieces_then(None))
    assert data_folders() == [folder.name]
    assert sorted(os.listdir(prepared.folder)) == ["half.npy", cache.MANIFEST, "whole.npy"]


@pytest.mark.parametrize(
    "error", [ValueError("wrong"), OSError(errno.EIO, "broken"), OSError(errno.ENOSPC, "full")]
)
def test_a_failed_build_leaves_neither_files_nor_pieces(error):
    with pytest.raises(type(error)):
        cache.prepared("demo", FINGERPRINT, keep_pieces_then(error))
    assert data_folders() == []
    cache.prepared("demo", FINGERPRINT, build)


@pytest.mark.skipif(not DEV_FULL.exists(), reason="the system has no /dev/full")
def test_a_full_disk_raises_a_clear_error_and_leaves_no_files():
    def fill(folder):
        build(folder)
        cache.save_array(DEV_FULL, np.zeros(100_000))

    with pytest.raises(OSError, match=r"demo needs to write to .*No space left.*Free some space"):
        cache.prepared("demo", FINGERPRINT, fill)
    assert data_folders() == []


@pytest.mark.parametrize("name", ["file", "n" * 300])
def test_a_cache_that_cannot_be_a_folder_is_named(name, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("NYSTROMFORMER_JAX_CACHE", str(tmp_path / name))
    with pytest.raises(OSError, match=r"demo needs to write to .*set NYSTROMFORMER_JAX_CACHE"):
        cache.prepared("demo", FINGERPRINT, build)


def test_a_killed_preparation_leaves_no_data():
    builder = start_builder()
    assert builder.stdout.readline() == "building\n"
    builder.send_signal(signal.SIGKILL)
    builder.communicate()
    folder = cache.folder_of("demo", FINGERPRINT)
    assert data_folders() == [f"{folder.name}.partial"]

    prepared = cache.prepared("demo", FINGERPRINT, build)
    assert data_folders() == [folder.name]
    assert sorted(os.listdir(prepared.folder)) == ["half.npy", cache.MANIFEST, "whole.npy"]


def test_a_second_process_waits_for_the_first():
    first, second = start_builder(), None
    try:
        assert first.stdout.readline() == "building\n"
        second = start_builder()
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(timeout=1)
    finally:
        output, _ = first.communicate("go on\n")
        second_output, _ = second.communicate("")
    assert output == second_output  # the hash alone: the second one never said "building"


def test_rejects_pickles(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(ValueError, match="Python objects"):
        cache.open_array(tmp_path / "objects.npy")


def test_without_a_home_folder_the_variable_is_named(monkeypatch):
    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("NYSTROMFORMER_JAX_CACHE", raising=False)
    monkeypatch.setattr(pathlib.Path, "expanduser", no_home)
    with pytest.raises(ValueError, match="NYSTROMFORMER_JAX_CACHE"):
        cache.cache_dir()
